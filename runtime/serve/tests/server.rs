//! The server over a real socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lz_engine::Engine;
use lz_serve::{Server, Source, serve};
use serde_json::Value;

fn engine() -> Engine {
    Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap()
}

fn start(engine: &Engine) -> Server {
    serve(Source::new(engine.clone()), 0).unwrap()
}

/// The path with the token.
fn base(server: &Server) -> String {
    let url = server.url();
    let at = url.rfind(&server.address().to_string()).unwrap() + server.address().to_string().len();
    url[at..].to_owned()
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

fn exchange(server: &Server, request: &str) -> Answer {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// `GET` with more headers, each ending with a line break.
fn get_with(server: &Server, path: &str, headers: &str) -> Answer {
    exchange(server, &format!("GET {path} HTTP/1.0\r\n{headers}\r\n"))
}

fn get(server: &Server, path: &str) -> Answer {
    get_with(server, path, &format!("Host: {}\r\n", server.address()))
}

fn api(server: &Server, path: &str) -> Value {
    let answer = get(server, &format!("{}{path}", base(server)));
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let request = format!(
        "POST {}{path} HTTP/1.0\r\nHost: {address}\r\nOrigin: http://{address}\r\nContent-Length: {}\r\n\r\n{body}",
        base(server),
        body.len(),
        address = server.address(),
    );
    let answer = exchange(server, &request);
    (answer.status, serde_json::from_str(&answer.body).unwrap())
}

#[test]
fn listens_on_loopback_only() {
    let server = start(&engine());
    assert!(server.address().ip().is_loopback());
    assert!(server.url().starts_with("http://127.0.0.1:"));
}

#[test]
fn every_path_requires_the_token() {
    let server = start(&engine());
    let wrong = base(&server).replace(|c: char| c.is_ascii_digit(), "a");
    for path in [
        "/",
        "/healthz",
        "/readyz",
        "/metrics",
        "/api/overview",
        "/app.js",
        &wrong,
        &format!("{wrong}api/overview"),
    ] {
        let answer = get(&server, path);
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.body.contains("token"), "{}", answer.body);
    }
    assert_eq!(get(&server, &base(&server)).status, 200);
}

#[test]
fn other_hosts_and_origins_are_refused() {
    let server = start(&engine());
    let (path, port) = (format!("{}api/overview", base(&server)), server.address().port());
    for headers in [
        String::new(),
        format!("Host: example.com:{port}\r\n"),
        format!("Host: 127.0.0.1.example.com:{port}\r\n"),
        format!("Host: 127.0.0.1:{port}\r\nOrigin: http://example.com\r\n"),
        format!("Host: 127.0.0.1:{port}\r\nOrigin: http://localhost:{port}\r\n"),
        format!("Host: 127.0.0.1:{port}\r\nOrigin: null\r\n"),
        format!("Host: 127.0.0.1:{port}\r\nSec-Fetch-Site: cross-site\r\n"),
    ] {
        let answer = get_with(&server, &path, &headers);
        assert_eq!(answer.status, 403, "{headers}");
        assert!(!answer.body.contains("kernels"), "{}", answer.body);
    }
    let own = format!("Host: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n");
    assert_eq!(get_with(&server, &path, &own).status, 200);
}

#[test]
fn page_may_load_nothing_from_elsewhere() {
    let server = start(&engine());
    let answer = get(&server, &base(&server));
    assert!(answer.status == 200 && answer.body.contains("<title>LayerZero</title>"), "{}", answer.body);
    for header in [
        "content-security-policy: default-src 'none'",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
    ] {
        assert!(answer.head.contains(header), "{header}\n{}", answer.head);
    }
    let app = get(&server, &format!("{}app.js", base(&server)));
    assert!(app.head.contains("content-type: text/javascript") && app.body.contains("import"));
    assert_eq!(get(&server, &format!("{}secret.js", base(&server))).status, 404);
}

#[test]
fn probes_and_metrics_accept_the_token_in_a_header() {
    let server = start(&engine());
    let token = base(&server).trim_matches('/').to_owned();
    let headers = format!("Host: {}\r\nAuthorization: Bearer {token}\r\n", server.address());
    assert_eq!(get_with(&server, "/healthz", &headers).body, "ok\n");
    let metrics = get_with(&server, "/metrics", &headers);
    assert!(metrics.body.contains("lz_selection"), "{}", metrics.body);
    let ready = get_with(&server, "/readyz", &headers);
    assert_eq!(ready.status, 200, "{}", ready.body);
}

#[test]
fn an_engine_that_cannot_serve_is_not_ready() {
    let engine = engine();
    let server = start(&engine);
    let reason = lz_core::Reason::new(lz_core::ReasonCode::BackendDisabled).message("removed by a test");
    engine.disable_backend("reference", reason);
    let answer = get(&server, &format!("{}readyz", base(&server)));
    assert_eq!(answer.status, 503);
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    let failed = |name: &str| {
        body["checks"].as_array().unwrap().iter().any(|check| check["name"] == name && check["ok"] == false)
    };
    assert!(failed("kernels") && failed("backends") && !failed("circuits"), "{body}");
}

#[test]
fn live_events_follow_calls() {
    let engine = engine();
    let server = start(&engine);
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET {}api/live HTTP/1.1\r\nHost: {}\r\n\r\n", base(&server), server.address()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let mut next = || -> Value {
        let line = lines.find(|line| line.starts_with("data: ")).unwrap();
        serde_json::from_str(&line["data: ".len()..]).unwrap()
    };
    assert_eq!(next()["metrics"]["executions"], 0);
    let data = [3.0f32, 4.0];
    let x = lz_core::TensorView::from_slice(&data, &[1, 2]).unwrap();
    lz_ops::norm_rms(&engine, lz_ops::NormRms::new(x)).unwrap();
    // Counts the calls of this thread.
    engine.metrics();
    let after = next();
    assert_eq!(after["metrics"]["executions"], 1, "{after}");
    assert!(after["time"].as_f64().unwrap() > 1.7e9);
}

#[test]
fn typed_calls_are_explained_also_for_simulated_devices() {
    let server = start(&engine());
    let call = "x=f32[4,64] weight=f32[64]";
    let (status, answer) =
        post(&server, "api/explain", &serde_json::json!({"operation": "norm.rms", "call": call}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["plan"]["kernel"], "reference.norm.rms");
    let request = serde_json::json!({"operation": "norm.rms", "call": call, "device": "h100"});
    let (_, answer) = post(&server, "api/explain", &request);
    assert_eq!(
        (&answer["device"]["imagined"], &answer["plan"]),
        (&Value::Bool(true), &Value::Null),
        "{answer}"
    );
    let request = serde_json::json!({"operation": "norm.rsm", "call": call});
    let (status, answer) = post(&server, "api/explain", &request);
    assert_eq!(status, 422);
    assert!(answer["error"].as_str().unwrap().contains("did you mean `norm.rms`?"), "{answer}");
}

#[test]
fn lockfiles_are_compared() {
    let engine = engine();
    let server = start(&engine);
    engine.record_decisions(true);
    let data = [3.0f32, 4.0];
    let x = lz_core::TensorView::from_slice(&data, &[1, 2]).unwrap();
    lz_ops::norm_rms(&engine, lz_ops::NormRms::new(x)).unwrap();
    let text = engine.freeze().text();
    let file = |text: &str| serde_json::json!({"name": "layerzero.lock", "text": text});
    let (status, same) = post(&server, "api/lockfile/diff", &serde_json::json!({"expected": file(&text)}));
    assert_eq!((status, &same["differences"]), (200, &serde_json::json!([])), "{same}");
    engine.record_decisions(true);
    let (_, differs) = post(&server, "api/lockfile/diff", &serde_json::json!({"expected": file(&text)}));
    assert!(!differs["differences"].as_array().unwrap().is_empty());
    let (status, wrong) =
        post(&server, "api/lockfile/diff", &serde_json::json!({"expected": file("version: 2")}));
    assert_eq!(status, 422);
    assert!(wrong["error"].as_str().unwrap().contains("layerzero.lock"));
}

#[test]
fn every_page_has_data() {
    let server = start(&engine());
    let overview = api(&server, "api/overview");
    assert_eq!(overview["pid"], std::process::id());
    assert!(overview["devices"].as_array().is_some_and(|devices| !devices.is_empty()));
    let operations = api(&server, "api/operations");
    assert_eq!(operations["operations"].as_array().unwrap().len(), lz_ops::OPERATIONS.len());
    let operation = api(&server, "api/operation/norm.rms");
    assert!(operation["examples"].as_array().is_some_and(|examples| !examples.is_empty()));
    let policy = api(&server, "api/policy");
    let enabled =
        policy["entries"].as_array().unwrap().iter().find(|entry| entry["key"] == "enabled").unwrap();
    assert_eq!(enabled["source"], "default");
    assert_eq!(api(&server, "api/health")["level"], "Full");
    assert_eq!(api(&server, "api/lockfile")["compared"], false);
    assert_eq!(get(&server, &format!("{}api/operation/none", base(&server))).status, 404);
}

#[test]
fn closed_server_does_not_listen() {
    let mut server = start(&engine());
    let address = server.address();
    server.close();
    server.close();
    assert!(!server.is_open() && TcpStream::connect(address).is_err());
}

#[test]
fn report_is_one_file_without_addresses() {
    let html = lz_serve::report(&Source::new(engine()));
    assert!(html.contains("\"operation/norm.rms\"") && html.contains("function livePage"));
    for absent in ["src=", "<link rel=\"stylesheet\"", "\nimport ", "\nexport ", "https://"] {
        assert!(!html.contains(absent), "{absent}");
    }
}
