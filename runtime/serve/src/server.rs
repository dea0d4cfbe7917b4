//! The server: one thread with its own event loop, on a loopback address.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::{self, Either};
use tokio::sync::oneshot;

use crate::access::Token;
use crate::data::Source;
use crate::registration::Registration;
use crate::routes;

/// How long closing waits for requests that are being answered.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A running server. Dropping it closes it.
#[derive(Debug)]
pub struct Server {
    url: String,
    address: SocketAddr,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    registration: Option<Registration>,
    /// The process that started the server; a forked child has a copy of this handle, but no thread.
    process: u32,
}

/// Serves an engine on a loopback address; port 0 selects a free one.
pub fn serve(source: Source, port: u16) -> io::Result<Server> {
    let token = Token::random()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let url = format!("http://{address}/{}/", token.as_str());
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let router = routes::router(source, token);
    let thread = std::thread::Builder::new().name("lz-serve".to_owned()).spawn(move || {
        let served = async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, router).await
        };
        let ended = runtime.block_on(async { future::select(Box::pin(served), stopped).await });
        if let Either::Left((Err(error), _)) = ended {
            tracing::warn!(%error, "the page is no longer served");
        }
        // Live connections have no end of their own.
        runtime.shutdown_timeout(CLOSE_TIMEOUT);
    })?;
    // Without a registration the page works, but other processes do not find it.
    let registration = Registration::write(&url)
        .inspect_err(|error| tracing::warn!(%error, "the URL of the page could not be registered"))
        .ok();
    let running = Some(Running { stop, thread, registration, process: std::process::id() });
    Ok(Server { url, address, running })
}

impl Server {
    /// The URL of the page. It contains the token, which is all that a reader needs.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it has not been closed.
    pub fn is_open(&self) -> bool {
        self.running.is_some()
    }

    /// Stops listening and ends all connections. Closing again has no effect.
    pub fn close(&mut self) {
        let Some(running) = self.running.take() else { return };
        let Running { stop, thread, registration, process } = running;
        if process != std::process::id() {
            std::mem::forget(registration);
            return;
        }
        drop(registration);
        // Both fail only if the thread has already ended.
        stop.send(()).ok();
        thread.join().ok();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}
