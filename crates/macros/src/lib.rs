//! `#[guard]`: a function as a resource of a Tidegate gate.
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
//! orders.gate.load(Rules { flow: vec![FlowRule::new("orders.find", 1)], ..Rules::default() })?;
//! assert_eq!(orders.find("ann")?, "orders of ann");
//! assert_eq!(orders.find("ann")?, "what we knew of ann");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod expand;
mod options;

use proc_macro::TokenStream;
use syn::{ItemFn, parse_macro_input};

/// Enters a resource around a function: a blocked call does not run, and the rules learn how every other call went.
///
/// Works on functions and methods, sync and async. An async function sleeps out a delay (of a throttle, or of a
/// prioritized call that borrows) on the gate's timer, and dropping its future cancels the call. A sync function blocks
/// its thread for the delay.
///
/// A function that is not async and returns a future is refused, as it is done before its future runs; under
/// `#[async_trait]`, guard a function that the method calls. So are a `const` one, and one that returns `impl Trait`.
///
/// A `Blocked` that has become part of an error of one's own cannot be seen, and is a failure unless `failed` says
/// otherwise.
///
/// | option | meaning |
/// |---|---|
/// | `resource = "name"` | the resource; any expression that is a `&str` |
/// | `gate = expr` | the gate; without it, the argument named `gate`, or else `self.gate` |
/// | `handle = expr` | instead of both: a `Resource`, which saves the look-up |
/// | `fallback = path` | called with the function's arguments and the `Blocked`; async for an async function. Without it, the function returns `Err(blocked.into())` |
/// | `failed = expr` | says of a reference to what was returned whether the call has failed. Without it, a `Result` has failed when it is an `Err`, but for a `Blocked` of a resource further in, by itself or as a `dyn Error`; another type never |
/// | `count = expr`, `origin = expr`, `context = expr`, `inbound`, `prioritized` | as of an `Entry` |
/// | `args(expr, …)` | the arguments that hot-parameter rules see |
#[proc_macro_attribute]
pub fn guard(options: TokenStream, function: TokenStream) -> TokenStream {
    let options = parse_macro_input!(options as options::Options);
    let function = parse_macro_input!(function as ItemFn);
    expand::expand(&options, &function).unwrap_or_else(syn::Error::into_compile_error).into()
}
