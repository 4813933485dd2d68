//! Parses the options of the attribute.

use syn::{
    Expr, Path, Token,
    ext::IdentExt,
    parenthesized,
    parse::{Parse, ParseStream},
    punctuated::Punctuated,
};

#[derive(Default)]
pub(crate) struct GuardOptions {
    pub(crate) resource: Option<Expr>,
    pub(crate) gate: Option<Expr>,
    pub(crate) handle: Option<Expr>,
    pub(crate) fallback: Option<Path>,
    pub(crate) failed: Option<Expr>,
    pub(crate) count: Option<Expr>,
    pub(crate) origin: Option<Expr>,
    pub(crate) context: Option<Expr>,
    pub(crate) inbound: bool,
    pub(crate) prioritized: bool,
    pub(crate) args: Vec<Expr>,
}

impl Parse for GuardOptions {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            let name = input.call(syn::Ident::parse_any)?;
            match name.to_string().as_str() {
                "inbound" => options.inbound = true,
                "prioritized" => options.prioritized = true,
                "args" => {
                    let inner;
                    parenthesized!(inner in input);
                    options.args = Punctuated::<Expr, Token![,]>::parse_terminated(&inner)?
                        .into_iter()
                        .collect();
                }
                "fallback" => options.fallback = Some(value(input)?),
                "resource" => options.resource = Some(value(input)?),
                "gate" => options.gate = Some(value(input)?),
                "handle" => options.handle = Some(value(input)?),
                "failed" => options.failed = Some(value(input)?),
                "count" => options.count = Some(value(input)?),
                "origin" => options.origin = Some(value(input)?),
                "context" => options.context = Some(value(input)?),
                _ => {
                    let known = "resource, gate, handle, fallback, failed, count, origin, context, inbound, prioritized, args";
                    return Err(syn::Error::new(
                        name.span(),
                        format!("unknown option `{name}`; the options are {known}"),
                    ));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

fn value<T: Parse>(input: ParseStream<'_>) -> syn::Result<T> {
    input.parse::<Token![=]>()?;
    input.parse()
}
