//! Answers that need no database and no index: routing, authentication, validation. Nothing listens at the configured
//! addresses, so a call that went further would fail differently.

use std::{os::unix::fs::PermissionsExt, sync::Arc};

use axum::{
    body::{Body, to_bytes},
    http::{HeaderMap, Method, Request, Response},
};
use serde_json::Value;
use tempfile::TempDir;
use tower::ServiceExt;

use super::{Services, dispatch};
use crate::{app::Gateway, auth::Credentials, config::Config};

const BODY_BYTES_MAX: usize = 1 << 20;

struct Answer {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn problem(&self) -> (u16, String) {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{}", self.text);
        let document: Value = serde_json::from_str(&self.text).unwrap();
        assert_eq!(document["status"], self.status);
        assert_eq!(document["request_id"], self.headers["x-request-id"].to_str().unwrap());
        (self.status, document["code"].as_str().unwrap().to_owned())
    }
}

fn services(folder: &TempDir) -> Arc<Services> {
    let credentials = folder.path().join("credentials.toml");
    let text = "[[credential]]\naccess_key = \"AK\"\nsecret_key = \"SK\"\ntoken = \"TK\"\nuid = 7\n";
    std::fs::write(&credentials, text).unwrap();
    std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o600)).unwrap();
    let config = config(folder);
    let credentials = Arc::new(Credentials::read(&config.credentials_file).unwrap());
    Arc::new(Services::new(&config, Arc::new(Gateway::new(&config).unwrap()), credentials).unwrap())
}

fn config(folder: &TempDir) -> Config {
    let credentials = folder.path().join("credentials.toml");
    Config::parse(&format!(
        "listen = \"127.0.0.1:0\"\nprobes_listen = \"127.0.0.1:0\"\ndata_dir = {:?}\ncredentials_file = {credentials:?}\n\
         [postgres]\nhost = \"127.0.0.1\"\nport = 1\ndatabase = \"d\"\nuser = \"u\"\n\
         [index]\nreplicas = [\"127.0.0.1:1\"]\n",
        folder.path().join("data")
    ))
    .unwrap()
}

async fn ask(services: &Arc<Services>, method: Method, target: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut request = Request::builder().method(method).uri(target).header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_owned())).unwrap();
    read(dispatch(services.clone(), request).await).await
}

async fn read(response: Response<Body>) -> Answer {
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, BODY_BYTES_MAX).await.unwrap();
    Answer { status: parts.status.as_u16(), headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

const TOKEN: (&str, &str) = ("authorization", "Bearer TK");

#[tokio::test]
async fn native_calls_need_a_token_and_a_route() {
    let folder = TempDir::new().unwrap();
    let services = services(&folder);
    for headers in [&[][..], &[("authorization", "Bearer guess")], &[("authorization", "Basic TK")]] {
        let answer = ask(&services, Method::GET, "/v1/ns", headers, "").await;
        assert_eq!(answer.problem(), (401, "unauthenticated".to_owned()));
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
    }
    let answer = ask(&services, Method::GET, "/v1/surprise", &[TOKEN], "").await;
    assert_eq!(answer.problem(), (404, "not_found".to_owned()));
    let answer = ask(&services, Method::POST, "/v1/ns", &[TOKEN], "").await;
    assert_eq!(answer.problem(), (501, "not_implemented".to_owned()));
}

#[tokio::test]
async fn bad_paths_reach_validation_as_they_were_sent() {
    let folder = TempDir::new().unwrap();
    let services = services(&folder);
    let long = "n".repeat(256);
    let deep = "d/".repeat(129);
    for (path, code) in [
        ("a//b", "invalid_name"),
        ("/a", "invalid_name"),
        ("/", "invalid_name"),
        ("a/../b", "invalid_name"),
        ("a/./b", "invalid_name"),
        ("%2E%2E", "invalid_name"),
        ("a%00b", "invalid_name"),
        ("a%ff", "invalid_name"),
        ("a%2", "invalid_name"),
        (long.as_str(), "name_too_long"),
        (deep.as_str(), "path_too_deep"),
    ] {
        for (method, kind) in
            [(Method::PUT, "dirs"), (Method::DELETE, "dirs"), (Method::GET, "entries"), (Method::GET, "list")]
        {
            let answer = ask(&services, method.clone(), &format!("/v1/ns/bucket/{kind}/{path}"), &[TOKEN], "").await;
            assert_eq!(answer.problem(), (400, code.to_owned()), "{method} {kind} {path}");
        }
    }
}

#[tokio::test]
async fn bad_parameters_and_bodies_are_refused() {
    let folder = TempDir::new().unwrap();
    let services = services(&folder);
    for (method, target, body) in [
        (Method::GET, "/v1/ns/bucket/list/?limit=0", ""),
        (Method::GET, "/v1/ns/bucket/list/?limit=1001", ""),
        (Method::GET, "/v1/ns/bucket/list/?surprise=1", ""),
        (Method::GET, "/v1/ns/bucket/list/?cursor=!", ""),
        (Method::PUT, "/v1/ns/bucket/dirs/a?parents=maybe", ""),
        (Method::POST, "/v1/ns/bucket/rename", ""),
        (Method::POST, "/v1/ns/bucket/rename", "{\"src\": \"a/\"}"),
        (Method::POST, "/v1/ns/bucket/rename", "{\"src\": \"a/\", \"dst\": \"b\"}"),
        (Method::POST, "/v1/ns/bucket/rename", "{\"src\": \"a/\", \"dst\": \"b/\", \"surprise\": 1}"),
        (Method::POST, "/v1/ns/bucket/rename", "{\"src\": \"\", \"dst\": \"b/\"}"),
        (Method::PATCH, "/v1/ns/bucket/entries/a", "{}"),
        (Method::PATCH, "/v1/ns/bucket/entries/a", "{\"mode\": \"0888\"}"),
        (Method::PATCH, "/v1/ns/bucket/entries/a", "{\"mode\": \"7777\"}"),
        (Method::PATCH, "/v1/ns/bucket/entries/a", "{\"user_metadata\": {\":cache-control\": \"x\"}}"),
    ] {
        let answer = ask(&services, method, target, &[TOKEN], body).await;
        assert_eq!(answer.problem(), (400, "invalid_argument".to_owned()), "{target} {body}");
    }
    let answer = ask(&services, Method::PUT, "/v1/ns/bucket/dirs/a", &[TOKEN, ("idempotency-key", "1")], "").await;
    assert_eq!(answer.problem(), (400, "invalid_argument".to_owned()));
    let answer = ask(&services, Method::PUT, "/v1/ns/metrics", &[TOKEN], "").await;
    assert_eq!(answer.problem(), (400, "invalid_namespace_name".to_owned()));
}

#[tokio::test]
async fn a_service_without_its_database_says_so() {
    let folder = TempDir::new().unwrap();
    let probes = super::probes::router(Arc::new(Gateway::new(&config(&folder)).unwrap()));
    let probe = async |method: Method, target: &str| {
        let request = Request::builder().method(method).uri(target).body(Body::empty()).unwrap();
        read(probes.clone().oneshot(request).await.unwrap()).await
    };
    assert_eq!(probe(Method::GET, "/livez").await.status, 200);
    assert_eq!(probe(Method::POST, "/livez").await.status, 405);
    assert_eq!(probe(Method::GET, "/readyz").await.status, 503);
    let services = services(&folder);
    // Where users ask, they are buckets' names.
    for probe in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(ask(&services, Method::GET, probe, &[], "").await.status, 403, "{probe}");
    }
    let answer = ask(&services, Method::GET, "/v1/ns", &[TOKEN], "").await;
    assert_eq!(answer.problem(), (503, "database_unavailable".to_owned()));
    assert_eq!(answer.headers["retry-after"], "1");
}

#[tokio::test]
async fn s3_refuses_unsigned_requests_in_its_own_form() {
    let folder = TempDir::new().unwrap();
    let services = services(&folder);
    for (method, target) in [
        (Method::GET, "/"),
        (Method::GET, "/bucket/key"),
        (Method::PUT, "/bucket/key"),
        (Method::PUT, "/bucket/key?renameObject"),
        (Method::DELETE, "/bucket"),
    ] {
        let answer = ask(&services, method, target, &[], "").await;
        assert_eq!(answer.status, 403, "{target}");
        assert!(answer.text.contains("<Code>AccessDenied</Code>"), "{}", answer.text);
        assert!(answer.headers.contains_key("x-amz-request-id"));
    }
    let answer = ask(&services, Method::HEAD, "/bucket/key", &[], "").await;
    assert_eq!((answer.status, answer.text.as_str()), (403, ""));
    assert_eq!(ask(&services, Method::GET, "/bucket/%ff", &[], "").await.status, 400);
}
