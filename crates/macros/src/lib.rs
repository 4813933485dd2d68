//! `#[guard]` turns a function into a resource of a Tidegate gate.
//!
//! ```
//! use tidegate_flow::{Blocked, Gate, rules::{FlowRule, Rules}};
//! use tidegate_macros::guard;
//!
//! struct Orders { gate: Gate }
//!
//! impl Orders {
//!     #[guard(resource = "orders.find", args(user), fallback = Self::cached)]
//!     fn find(&self, user: &str) -> Result<String, Blocked> {
//!         Ok(format!("orders of {user}"))
//!     }
//!
//!     fn cached(&self, user: &str, _blocked: Blocked) -> Result<String, Blocked> {
//!         Ok(format!("what we knew of {user}"))
//!     }
//! }
//!
//! let orders = Orders { gate: Gate::new() };
//! orders.gate.load(Rules::from(vec![FlowRule::new("orders.find", 1)]))?;
//! assert_eq!(orders.find("ann")?, "orders of ann");
//! assert_eq!(orders.find("ann")?, "what we knew of ann");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod expand;
mod options;

use proc_macro::TokenStream;
use syn::{ItemFn, parse_macro_input};

/// Enters a resource around a function. A blocked call does not run. For every other call, the
/// rules receive its outcome.
///
/// It works on functions and methods, sync and async. A throttle, or a prioritized call that
/// borrows, may cause a delay. An async function sleeps for the delay on the gate's timer, and
/// dropping its future cancels the call. A sync function blocks its thread for the delay.
///
/// The attribute rejects a function that is not async but returns a future, because the function
/// returns before its future runs. Under `#[async_trait]`, guard a function that the method calls.
/// The attribute also rejects `const` functions and functions that return `impl Trait`.
///
/// The attribute cannot recognise a `Blocked` inside another error type. Such an error counts as a
/// failure unless `failed` says otherwise.
///
/// | option | meaning |
/// |---|---|
/// | `resource = "name"` | the resource: any expression of type `&str` |
/// | `gate = expr` | the gate. Default: the argument named `gate`, or else `self.gate` |
/// | `handle = expr` | a `Resource`, instead of `resource` and `gate`; saves the lookup |
/// | `fallback = path` | the function to call when a rule blocks, with the original arguments and the `Blocked`. It must be async if the function is async. Default: return `Err(blocked.into())` |
/// | `failed = expr` | decides from a reference to the return value whether the call failed. Default: a `Result` failed if it is an `Err`, unless the error is a `Blocked` of a nested resource, either directly or as a `dyn Error`. Other types never fail |
/// | `count = expr`, `origin = expr`, `context = expr`, `inbound`, `prioritized` | the same as the methods of `Entry` |
/// | `args(expr, …)` | the arguments for hot-parameter rules |
#[proc_macro_attribute]
pub fn guard(options: TokenStream, function: TokenStream) -> TokenStream {
    let options = parse_macro_input!(options as options::GuardOptions);
    let function = parse_macro_input!(function as ItemFn);
    expand::expand(&options, &function)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
