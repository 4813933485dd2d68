//! The guarded function.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Error, FnArg, Ident, ItemFn, Pat, ReturnType, Type, parse_quote};

use crate::options::Options;

pub(crate) fn expand(options: &Options, function: &ItemFn) -> syn::Result<TokenStream> {
    let is_async = function.sig.asyncness.is_some();
    let output: Type = match &function.sig.output {
        ReturnType::Default => parse_quote!(()),
        ReturnType::Type(_, output) => (**output).clone(),
    };
    if let Type::ImplTrait(output) = &output {
        return Err(Error::new_spanned(
            output,
            "a guarded function must name its return type; box it, perhaps",
        ));
    }
    let entry = entry(options, function)?;
    let blocked = if let Some(fallback) = &options.fallback {
        let arguments = arguments(function)?;
        let wait = is_async.then(|| quote!(.await));
        quote!(#fallback(#(#arguments,)* __blocked) #wait)
    } else {
        quote!(::core::result::Result::Err(::core::convert::From::from(__blocked)))
    };
    let failed = match &options.failed {
        Some(failed) => quote!((#failed)(__output)),
        None if is_result(&output) => quote!(__judge.of(__output).is_failure()),
        None => quote!({
            let _ = __output;
            false
        }),
    };
    // Only where it is used.
    let judge =
        (options.failed.is_none() && is_result(&output)).then(|| quote!(let __judge = __guard.judge();));
    let ItemFn { attrs, vis, sig, block } = function;
    let body = if is_async {
        quote! {
            let __guard = match { #entry.enter_async().await } {
                ::core::result::Result::Ok(guard) => guard,
                ::core::result::Result::Err(__blocked) => return #blocked,
            };
            #judge
            __guard.run(async move #block, |__output: &#output| #failed).await
        }
    } else {
        quote! {
            let mut __guard = match { #entry.enter_owned() } {
                ::core::result::Result::Ok(guard) => guard,
                ::core::result::Result::Err(__blocked) => return #blocked,
            };
            __guard.wait();
            #judge
            #[allow(clippy::redundant_closure_call)]
            let __output: #output = (move || -> #output #block)();
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

/// The expression of the entry with its options. It names no crate: whoever guards may know Tidegate by any name.
fn entry(options: &Options, function: &ItemFn) -> syn::Result<TokenStream> {
    let resource = match (&options.handle, &options.resource) {
        (Some(handle), None) if options.gate.is_none() => quote!(let __resource = &#handle;),
        (None, Some(name)) => {
            let gate = match &options.gate {
                Some(gate) => quote!(#gate),
                None => default_gate(function)?,
            };
            quote!(let __resource = &#gate.resource(#name);)
        }
        _ => {
            let text =
                "give it a resource (and perhaps a gate), or a handle: #[guard(resource = \"orders\")]";
            return Err(Error::new(Span::call_site(), text));
        }
    };
    let Options { count, origin, context, args, .. } = options;
    let count = count.iter();
    let origin = origin.iter();
    let context = context.iter();
    let inbound = options.inbound.then(|| quote!(.inbound()));
    Ok(quote! {
        #resource
        __resource.entry()
            #inbound
            #(.count(#count))*
            #(.origin(#origin))*
            #(.context(#context))*
            #(.arg_of(&#args))*
    })
}

/// The argument named `gate`, or the field of `self`.
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
    let text = "where is the gate? give the function an argument named gate, or the attribute gate = …";
    Err(Error::new_spanned(&function.sig.ident, text))
}

/// The function's arguments, to hand on.
fn arguments(function: &ItemFn) -> syn::Result<Vec<Ident>> {
    let name = |argument: &FnArg| match argument {
        FnArg::Receiver(_) => Ok(Ident::new("self", Span::call_site())),
        FnArg::Typed(argument) => match &*argument.pat {
            Pat::Ident(name) => Ok(name.ident.clone()),
            pattern => Err(Error::new_spanned(pattern, "a fallback needs arguments that are plain names")),
        },
    };
    function.sig.inputs.iter().map(name).collect()
}

fn is_result(output: &Type) -> bool {
    matches!(output, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Result"))
}
