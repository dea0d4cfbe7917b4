//! The page of an engine for C++.

use lz_core::{Error, Reason, ReasonCode};
use lz_serve::{Server, Source};

use crate::call::{Failure, guarded};
use crate::engine::Engine;

/// A server for C++; empty until it is started.
#[derive(Debug, Default)]
pub struct ServerHandle {
    server: Option<Server>,
}

/// An empty handle.
pub fn server_new() -> Box<ServerHandle> {
    Box::default()
}

/// Serves an engine on a loopback address; port 0 selects a free one.
pub fn server_start(server: &mut ServerHandle, engine: &Engine, port: u16) -> *mut Failure {
    guarded(|| {
        let started = lz_serve::serve(Source::new(engine.inner.clone()), port);
        let failed = |error: std::io::Error| {
            let message = format!("cannot listen on 127.0.0.1:{port}: {error}");
            let reasons = vec![Reason::new(ReasonCode::EnvironmentFailed).message(message.clone())];
            Error::Configuration { subject: "serve".to_owned(), message, reasons }
        };
        server.server = Some(started.map_err(failed)?);
        Ok(())
    })
}

/// The URL of the page; empty if the server is closed.
pub fn server_url(server: &ServerHandle) -> String {
    server.server.as_ref().map(|server| server.url().to_owned()).unwrap_or_default()
}

/// Closes the server.
pub fn server_close(server: &mut ServerHandle) {
    server.server = None;
}
