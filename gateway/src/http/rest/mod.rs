//! The native API, `/v1`. `openapi.yaml` describes it; a test compares the calls of both.

mod directories;
mod entries;
mod input;
mod migration;
mod namespaces;
mod operations;
mod output;

use std::sync::Arc;

use axum::{
    Router,
    routing::{self, MethodRouter},
};
use mantle_types::{Error, ErrorCode};

use super::{App, problem::Failure};

/// The names of the calls, in metrics.
pub(super) const VERBS: &[&str] = &[
    "create_namespace",
    "delete_namespace",
    "list",
    "list_namespaces",
    "migrate",
    "migration",
    "mkdir",
    "operation",
    "remove_tree",
    "rename",
    "rmdir",
    "set_attributes",
    "set_umask",
    "stat",
    "stat_many",
    "usage",
];

type Routes = MethodRouter<Arc<App>>;

/// Every call: method and path as in `openapi.yaml`, and its handler.
fn table() -> Vec<(&'static str, &'static str, Routes)> {
    vec![
        ("get", "/v1/ns", routing::get(namespaces::list)),
        ("put", "/v1/ns/{ns}", routing::put(namespaces::create)),
        ("patch", "/v1/ns/{ns}", routing::patch(namespaces::change)),
        ("delete", "/v1/ns/{ns}", routing::delete(namespaces::remove)),
        ("put", "/v1/ns/{ns}/dirs/{path}", routing::put(directories::mkdir)),
        ("delete", "/v1/ns/{ns}/dirs/{path}", routing::delete(directories::rmdir)),
        ("post", "/v1/ns/{ns}/rename", routing::post(directories::rename)),
        ("get", "/v1/ns/{ns}/entries/{path}", routing::get(entries::stat)),
        ("patch", "/v1/ns/{ns}/entries/{path}", routing::patch(entries::set_attributes)),
        ("get", "/v1/ns/{ns}/list/{path}", routing::get(directories::list)),
        ("get", "/v1/ns/{ns}/usage/{path}", routing::get(directories::usage)),
        ("post", "/v1/ns/{ns}/stat", routing::post(entries::stat_many)),
        ("get", "/v1/operations/{id}", routing::get(operations::operation)),
        ("get", "/v1/migration", routing::get(migration::show)),
        ("post", "/v1/migration", routing::post(migration::begin)),
    ]
}

/// The router. A path may be empty (the root), so each route that ends in a path is added three times.
pub(super) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for (_, path, methods) in table() {
        match path.strip_suffix("/{path}") {
            Some(bare) => {
                router = router.route(bare, methods.clone());
                router = router.route(&format!("{bare}/"), methods.clone());
                router = router.route(&format!("{bare}/{{*path}}"), methods);
            }
            None => router = router.route(path, methods),
        }
    }
    router
        .fallback(async || Failure(Error::new(ErrorCode::NotFound, "there is no such call")))
        .method_not_allowed_fallback(async || {
            Failure(Error::new(ErrorCode::NotImplemented, "the call has no such method"))
        })
        .with_state(app)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// Method and path of every operation in the description. Below `paths:`, paths have two spaces, methods four.
    fn described(page: &str) -> BTreeSet<(String, String)> {
        let body = page.split_once("\npaths:\n").expect("a paths section").1;
        let body = body.split_once("\ncomponents:\n").map_or(body, |(paths, _)| paths);
        let (mut found, mut path) = (BTreeSet::new(), String::new());
        for line in body.lines() {
            if let Some(text) = line.strip_prefix("  /") {
                path = format!("/{}", text.trim_end_matches(':'));
            } else if let Some(method) = line.strip_prefix("    ").and_then(|l| l.strip_suffix(':'))
                && ["get", "put", "post", "patch", "delete"].contains(&method)
            {
                found.insert((method.to_owned(), path.clone()));
            }
        }
        found
    }

    #[test]
    fn the_description_and_the_router_have_the_same_calls() {
        let routed = super::table().iter().map(|(m, p, _)| ((*m).to_owned(), (*p).to_owned())).collect();
        assert_eq!(described(include_str!("../../../openapi.yaml")), routed);
    }
}
