//! Which path returns what. Everything requires the token; see [`crate::access`].

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Router, response::Html};
use serde_json::Value;

use crate::access::{self, Token};
use crate::data::{self, Source};
use crate::live::{self, Watchers};
use crate::{assets, report};

/// Two lockfiles of the maximum size.
const MAX_BODY_BYTES: usize = 32 << 20;

/// The media types of the two text formats of metrics; only OpenMetrics has an end mark.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Clone)]
struct App {
    source: Source,
    watchers: Watchers,
}

/// All paths.
pub fn router(source: Source, token: Token) -> Router {
    let probes = || {
        Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(ready))
            .route("/metrics", get(async |State(app): State<App>| metrics_text(app).await))
    };
    let page = Router::new()
        .route("/report.html", get(page_report))
        .route("/api/live", get(async |State(app): State<App>| live::events(app.source, &app.watchers)))
        .route("/api/overview", read(data::overview))
        .route("/api/metrics", read(data::metrics))
        .route("/api/operations", read(data::operations))
        .route("/api/operation/{name}", get(operation))
        .route("/api/health", read(data::health))
        .route("/api/policy", read(data::policy))
        .route("/api/processes", read(|_| data::processes()))
        .route("/api/lockfile", get(configured_lockfiles))
        .route("/api/explain", post(explain))
        .route("/api/lockfile/diff", post(lockfile_diff))
        .route("/{asset}", get(asset))
        .merge(probes());
    let app = App { source, watchers: Watchers::default() };
    Router::new()
        .route(&format!("/{}/", token.as_str()), get(async || Html(assets::PAGE)))
        .nest(&format!("/{}", token.as_str()), page)
        // For programs, which send the token in a header.
        .merge(probes())
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(token, access::check))
        .with_state(app)
}

/// Runs a function that may wait for the database or for other threads, without blocking the event loop.
async fn blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, Response> {
    let failed = |_| (StatusCode::INTERNAL_SERVER_ERROR, "the request failed\n").into_response();
    tokio::task::spawn_blocking(run).await.map_err(failed)
}

fn read(function: fn(&Source) -> Value) -> MethodRouter<App> {
    get(async move |State(app): State<App>| blocking(move || json(&function(&app.source))).await)
}

fn json(value: &Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// JSON, or what was wrong with the request.
fn outcome(result: Result<Value, String>) -> Response {
    match result {
        Ok(value) => json(&value),
        Err(message) => {
            let body = serde_json::json!({"error": message}).to_string();
            (StatusCode::UNPROCESSABLE_ENTITY, [(CONTENT_TYPE, "application/json")], body).into_response()
        }
    }
}

async fn ready(State(app): State<App>) -> Result<Response, Response> {
    blocking(move || {
        let readiness = data::readiness(&app.source);
        let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, json(&serde_json::to_value(readiness).unwrap_or_default())).into_response()
    })
    .await
}

async fn metrics_text(app: App) -> Result<Response, Response> {
    blocking(move || {
        let text = data::metrics_text(&app.source);
        let media = if text.ends_with("# EOF\n") { OPEN_METRICS } else { PROMETHEUS };
        ([(CONTENT_TYPE, media)], text).into_response()
    })
    .await
}

async fn operation(State(app): State<App>, Path(name): Path<String>) -> Result<Response, Response> {
    blocking(move || {
        let found = data::operation(&app.source, &name);
        found.map_or_else(|| StatusCode::NOT_FOUND.into_response(), |value| json(&value))
    })
    .await
}

async fn explain(State(app): State<App>, body: Bytes) -> Result<Response, Response> {
    let request: data::ExplainRequest = serde_json::from_slice(&body).map_err(malformed)?;
    blocking(move || outcome(data::explain(&app.source, &request))).await
}

async fn lockfile_diff(State(app): State<App>, body: Bytes) -> Result<Response, Response> {
    let lockfiles: data::Lockfiles = serde_json::from_slice(&body).map_err(malformed)?;
    blocking(move || outcome(data::diff(&app.source, &lockfiles))).await
}

async fn configured_lockfiles(State(app): State<App>) -> Result<Response, Response> {
    blocking(move || outcome(data::configured(&app.source))).await
}

fn malformed(error: serde_json::Error) -> Response {
    outcome(Err(format!("the request is not valid: {error}")))
}

async fn page_report(State(app): State<App>) -> Result<Response, Response> {
    blocking(move || Html(report::report(&app.source)).into_response()).await
}

async fn asset(Path(name): Path<String>) -> Response {
    match assets::find(&name) {
        Some(asset) => ([(CONTENT_TYPE, asset.media)], asset.text).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
