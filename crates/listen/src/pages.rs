//! Whether a browser sent a request: a page of any site can have one sent to this machine.

use http::{HeaderMap, header};

/// Whether a browser sent a request with these fields. For a listener that only programs use: they
/// send none of the fields that a page cannot leave out.
///
/// A browser names the page's origin or address, or says how the page asks for it, or names itself:
/// to addresses other than localhost without TLS, it says no more than the last.
pub fn is_from_a_browser(fields: &HeaderMap) -> bool {
    let names_a_page = [header::ORIGIN.as_str(), "referer", "sec-fetch-site"];
    let agent = fields.get(header::USER_AGENT);
    names_a_page.iter().any(|name| fields.contains_key(*name))
        || agent.is_some_and(|agent| agent.as_bytes().starts_with(b"Mozilla/"))
}
