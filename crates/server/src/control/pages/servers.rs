//! The servers that share the store.

use maud::{Markup, html};
use tidegate_service::decide::service::health_name;

use super::{
    layout::{Frame, layout},
    shown,
};
use crate::edges::http::App;

pub(super) async fn page(app: &App) -> Frame {
    let head = html! { p { a href="/" { "All limits" } } h1 { "Servers" } };
    layout(
        "Servers",
        "",
        Some("/live?servers=all"),
        head,
        changing(app).await,
    )
}

/// The part that is updated each second.
pub(super) async fn changing(app: &App) -> Markup {
    let Some(shared) = app.service.store() else {
        return html! { p { "This server shares its limits with no other. Start it with --store to share them over Redis or Valkey." } };
    };
    let (store, servers) = (shared.store(), shared.servers().await);
    html! {
        ul class="facts" {
            li { "store " code { (shown::text(&store.address().to_string())) } ": " (health_name(store.health())) }
            li { (shown::counted(store.nodes().into(), "server")) " in the count by which limits are divided while the store is down" }
        }
        @match servers {
            Err(error) => p class="bad" { "The list of servers is in the store: " (shown::text(&error.to_string())) },
            Ok(servers) => table class="keys" {
                thead { tr { th scope="col" { "Server" } th scope="col" { "Version" } th scope="col" { "Seen" } } }
                tbody { @for server in &servers {
                    tr {
                        th scope="row" {
                            @if server.name.is_empty() { "without a name" } @else { (shown::text(&server.name)) }
                            @if server.is_this { small { "this server" } }
                        }
                        td { @if server.version.is_empty() { "–" } @else { (shown::text(&server.version)) } }
                        td { (shown::span(server.ago)) " ago" }
                    }
                } }
            },
        }
    }
}
