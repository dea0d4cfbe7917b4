//! Reads from another server of this machine: one small HTTP request over a blocking socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A server that does not answer within this time is skipped.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum size of an answer.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// The body of a successful answer to `GET <url><path>`.
pub fn get(url: &str, path: &str) -> io::Result<String> {
    let invalid = || io::Error::from(ErrorKind::InvalidInput);
    let (address, token) =
        url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).ok_or_else(invalid)?;
    let address: SocketAddr = address.parse().map_err(|_| invalid())?;
    if !address.ip().is_loopback() {
        return Err(invalid());
    }
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // HTTP/1.0: the answer ends with the connection.
    write!(stream, "GET /{token}{path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER_BYTES).read_to_string(&mut answer)?;
    let unexpected = || io::Error::from(ErrorKind::InvalidData);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(unexpected)?;
    let status = head.split(' ').nth(1).filter(|status| status.starts_with('2'));
    status.map(|_| body.to_owned()).ok_or_else(unexpected)
}

/// Whether an error means that the server has ended, and not only that it is slow.
pub fn has_ended(error: &io::Error) -> bool {
    !matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
