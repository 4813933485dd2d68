//! Expands a guarded function.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{
    Error, FnArg, GenericArgument, Ident, ItemFn, Pat, Path, PathArguments, ReturnType, Token,
    Type, TypeParamBound, parse_quote, punctuated::Punctuated,
};

use crate::options::GuardOptions;

pub(crate) fn expand(options: &GuardOptions, function: &ItemFn) -> syn::Result<TokenStream> {
    let is_async = function.sig.asyncness.is_some();
    let output: Type = match &function.sig.output {
        ReturnType::Default => parse_quote!(()),
        ReturnType::Type(_, output) => (**output).clone(),
    };
    refuse(function, &output)?;
    let entry = entry(options, function)?;
    let blocked = if let Some(fallback) = &options.fallback {
        let arguments = arguments(function)?;
        let wait = is_async.then(|| quote!(.await));
        quote!(#fallback(#(#arguments,)* __blocked) #wait)
    } else {
        quote!(::core::result::Result::Err(::core::convert::From::from(
            __blocked
        )))
    };
    let failed = match &options.failed {
        Some(failed) => quote!({
            // The bound infers the closure's argument type, so the user need not write it.
            fn __ask<T: ?Sized>(failed: impl ::core::ops::FnOnce(&T) -> bool, output: &T) -> bool {
                failed(output)
            }
            __ask(#failed, __output)
        }),
        None if is_result(&output) => quote!(__failure_check.of(__output).is_failure()),
        None => quote!({
            let _ = __output;
            false
        }),
    };
    // Emit it only if it is used.
    let check = (options.failed.is_none() && is_result(&output))
        .then(|| quote!(let __failure_check = __guard.failure_check();));
    let ItemFn {
        attrs,
        vis,
        sig,
        block,
    } = function;
    let statements = &block.stmts;
    let body = if is_async {
        quote! {
            let __guard = match { #entry.enter_async().await } {
                ::core::result::Result::Ok(guard) => guard,
                ::core::result::Result::Err(__blocked) => return #blocked,
            };
            #check
            // Fixes the type of the block, so that its result coerces to it. This function is never
            // called.
            fn __never<T>() -> T {
                loop {}
            }
            let __call = async move {
                if false {
                    return __never::<#output>();
                }
                #(#statements)*
            };
            __guard.run(__call, |__output: &#output| #failed).await
        }
    } else {
        quote! {
            let mut __guard = match { #entry.enter_owned() } {
                ::core::result::Result::Ok(guard) => guard,
                ::core::result::Result::Err(__blocked) => return #blocked,
            };
            __guard.wait();
            #check
            // The `FnOnce` bound allows the function's result to borrow from its arguments, even
            // mutably.
            fn __once<T>(call: impl ::core::ops::FnOnce() -> T) -> T {
                call()
            }
            let __output: #output = __once(move || -> #output #block);
            let __failed = { let __output = &__output; #failed };
            if __failed {
                __guard.mark_failed();
            }
            __output
        }
    };
    Ok(quote! {
        #(#attrs)*
        #vis #sig {
            #body
        }
    })
}

/// Rejects functions that a guard cannot support.
fn refuse(function: &ItemFn, output: &Type) -> syn::Result<()> {
    let sig = &function.sig;
    if let Some(constant) = &sig.constness {
        return Err(Error::new_spanned(
            constant,
            "a guarded function cannot be const: it checks rules at run time",
        ));
    }
    if sig.asyncness.is_none() && is_future(output) {
        let text = "the guard would leave when this function returns, before its future runs; make it an async fn, or \
                    guard one that it calls (with #[async_trait], one that the method calls)";
        return Err(Error::new_spanned(&sig.ident, text));
    }
    if names_impl(output.to_token_stream()) {
        return Err(Error::new_spanned(
            output,
            "a guarded function must name its return type; box it, perhaps",
        ));
    }
    Ok(())
}

/// Whether a type is a boxed future or `impl Future`.
fn is_future(of: &Type) -> bool {
    let names_it = |bounds: &Punctuated<TypeParamBound, Token![+]>| {
        bounds.iter().any(
            |bound| matches!(bound, TypeParamBound::Trait(bound) if last_is(&bound.path, "Future")),
        )
    };
    match of {
        Type::ImplTrait(output) => names_it(&output.bounds),
        Type::TraitObject(output) => names_it(&output.bounds),
        Type::Paren(inner) => is_future(&inner.elem),
        Type::Group(inner) => is_future(&inner.elem),
        Type::Path(output) => {
            let path = &output.path;
            let boxes = || match path.segments.last().map(|last| &last.arguments) {
                Some(PathArguments::AngleBracketed(inner)) => inner
                    .args
                    .iter()
                    .any(|inner| matches!(inner, GenericArgument::Type(inner) if is_future(inner))),
                _ => false,
            };
            last_is(path, "BoxFuture")
                || last_is(path, "LocalBoxFuture")
                || (last_is(path, "Pin") || last_is(path, "Box")) && boxes()
        }
        _ => false,
    }
}

fn names_impl(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(name) => name == "impl",
        TokenTree::Group(inner) => names_impl(inner.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// Returns the expression of the entry with its options. It names no crate, because the user's
/// crate may import Tidegate under any name.
fn entry(options: &GuardOptions, function: &ItemFn) -> syn::Result<TokenStream> {
    let resource = match (&options.handle, &options.resource) {
        (Some(handle), None) if options.gate.is_none() => quote!(let __resource = &(#handle);),
        (None, Some(name)) => {
            let gate = match &options.gate {
                Some(gate) => quote!(#gate),
                None => default_gate(function)?,
            };
            // Bind the gate to a variable: `*gate.resource(…)` would mean something else than
            // `(*gate).resource(…)`.
            quote!(let __resource = &{ let __gate = &(#gate); __gate.resource(#name) };)
        }
        _ => {
            let text = "name a resource (and, if needed, a gate) or a handle: #[guard(resource = \"orders\")]";
            return Err(Error::new(Span::call_site(), text));
        }
    };
    let GuardOptions {
        count,
        origin,
        context,
        args,
        ..
    } = options;
    let count = count.iter();
    let origin = origin.iter();
    let context = context.iter();
    let inbound = options.inbound.then(|| quote!(.inbound()));
    let prioritized = options.prioritized.then(|| quote!(.prioritized()));
    Ok(quote! {
        #resource
        __resource.entry()
            #inbound
            #prioritized
            #(.count(#count))*
            #(.origin(#origin))*
            #(.context(#context))*
            #(.arg_of(&(#args)))*
    })
}

/// Returns the argument named `gate`, or the field of `self`.
fn default_gate(function: &ItemFn) -> syn::Result<TokenStream> {
    let is_gate = |argument: &FnArg| {
        matches!(argument, FnArg::Typed(argument)
            if matches!(&*argument.pat, Pat::Ident(name) if name.ident == "gate"))
    };
    if function.sig.inputs.iter().any(is_gate) {
        return Ok(quote!(gate));
    }
    if function.sig.receiver().is_some() {
        return Ok(quote!(self.gate));
    }
    let text =
        "the function has no gate: give it an argument named gate, or the attribute gate = …";
    Err(Error::new_spanned(&function.sig.ident, text))
}

/// Returns the function's arguments, to pass to the fallback.
fn arguments(function: &ItemFn) -> syn::Result<Vec<Ident>> {
    let name = |argument: &FnArg| match argument {
        FnArg::Receiver(_) => Ok(Ident::new("self", Span::call_site())),
        FnArg::Typed(argument) => match &*argument.pat {
            Pat::Ident(name) => Ok(name.ident.clone()),
            pattern => Err(Error::new_spanned(
                pattern,
                "a fallback needs arguments with plain names",
            )),
        },
    };
    function.sig.inputs.iter().map(name).collect()
}

fn is_result(output: &Type) -> bool {
    matches!(output, Type::Path(output) if last_is(&output.path, "Result"))
}

fn last_is(path: &Path, name: &str) -> bool {
    path.segments.last().is_some_and(|last| last.ident == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(options: &str, function: &str) -> syn::Result<TokenStream> {
        let options = syn::parse_str(options).expect("the options are well formed");
        expand(
            &options,
            &syn::parse_str(function).expect("the function is well formed"),
        )
    }

    fn refused(options: &str, function: &str) -> String {
        expanded(options, function)
            .expect_err("it makes no sense")
            .to_string()
    }

    #[test]
    fn a_function_whose_future_would_outlive_its_guard_is_refused() {
        let named = r#"resource = "r""#;
        for function in [
            "fn f(gate: &Gate) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> { unreachable!() }",
            "fn f(gate: &Gate) -> Box<dyn std::future::Future<Output = ()>> { unreachable!() }",
            "fn f(gate: &Gate) -> futures::future::BoxFuture<'_, ()> { unreachable!() }",
            "fn f(gate: &Gate) -> impl Future<Output = ()> + Send { unreachable!() }",
        ] {
            assert!(refused(named, function).contains("make it an async fn"));
        }
        // These futures are run by their receiver, as usual.
        for function in [
            "fn f(gate: &Gate) -> Result<Box<dyn Display>, Blocked> { unreachable!() }",
            "async fn f(gate: &Gate) -> Result<Pin<Box<dyn Future<Output = ()>>>, Blocked> { unreachable!() }",
        ] {
            assert!(expanded(named, function).is_ok());
        }
    }

    #[test]
    fn what_cannot_be_guarded_says_what_to_do() {
        let named = r#"resource = "r""#;
        for (options, function, says) in [
            (
                named,
                "fn f(gate: &Gate) -> impl Display { 7 }",
                "must name its return type",
            ),
            (
                named,
                "fn f(gate: &Gate) -> Result<impl Display, Blocked> { Ok(7) }",
                "must name",
            ),
            (
                named,
                "fn f(gate: &Gate) -> (u8, Vec<impl Display>) { unreachable!() }",
                "must name",
            ),
            (
                named,
                "const fn f(gate: &Gate) -> Result<(), Blocked> { Ok(()) }",
                "cannot be const",
            ),
            (
                named,
                "fn f() -> Result<(), Blocked> { Ok(()) }",
                "the function has no gate",
            ),
            ("", "fn f(gate: &Gate) {}", "name a resource"),
            (
                r#"resource = "r", handle = h"#,
                "fn f(gate: &Gate) {}",
                "or a handle",
            ),
            (
                r#"resource = "r", fallback = g"#,
                "fn f(gate: &Gate, (a, b): (u8, u8)) {}",
                "arguments with plain names",
            ),
        ] {
            let said = refused(options, function);
            assert!(said.contains(says), "{said}");
        }
        let unknown = syn::parse_str::<GuardOptions>(r#"resuorce = "r""#)
            .err()
            .expect("there is no such option");
        assert!(
            unknown.to_string().contains("the options are resource"),
            "{unknown}"
        );
    }
}
