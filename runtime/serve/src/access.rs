//! Who may read: requests that carry the token, name a loopback host, and come from the page itself.
//!
//! A web page elsewhere can send requests to a loopback address, or let its own name resolve to one (DNS rebinding). The `Host`
//! and `Origin` headers, which such a page cannot forge, identify both.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Bytes of randomness in a token.
const TOKEN_BYTES: usize = 16;

/// The secret in the URL of a server.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// A random token.
    pub fn random() -> std::io::Result<Token> {
        let mut bytes = [0u8; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(std::io::Error::from)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Token(text.into()))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a text is the token, in a time that does not depend on where they differ.
    fn is(&self, text: &str) -> bool {
        let (own, other) = (self.0.as_bytes(), text.as_bytes());
        own.len() == other.len() && own.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    }
}

/// Rejects requests that may not read, and adds headers that restrict what the page may load.
pub async fn check(State(token): State<Token>, request: Request, next: Next) -> Response {
    let mut response = match refusal(&token, request.uri(), request.headers()) {
        None => next.run(request).await,
        Some(why) => (StatusCode::FORBIDDEN, format!("{why}\n")).into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

const HEADERS: [(header::HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    // The URL contains the token.
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Why a request is refused; `None` if it is not.
fn refusal(token: &Token, uri: &Uri, headers: &HeaderMap) -> Option<&'static str> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(host) = text(HOST).filter(|host| is_loopback(host)) else {
        return Some("the Host header must name a loopback address");
    };
    let is_own = |origin: &str| origin.strip_prefix("http://") == Some(host);
    if headers.contains_key(ORIGIN) && !text(ORIGIN).is_some_and(is_own) {
        return Some("requests of other origins are refused");
    }
    if text(header::HeaderName::from_static("sec-fetch-site")) == Some("cross-site") {
        return Some("requests of other sites are refused");
    }
    let in_path = uri.path().split('/').nth(1).is_some_and(|first| token.is(first));
    let in_header =
        || text(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|it| token.is(it));
    (!in_path && !in_header())
        .then_some("wrong or missing token; open the URL that lz.serve() or `lz serve` printed")
}

/// Whether a `Host` header names a loopback address. The port may differ from the server's, so that a forwarded port works.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    ["127.0.0.1", "localhost", "[::1]"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &str, headers: &[(&'static str, &str)]) -> bool {
        let token = Token("00ff".into());
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        refusal(&token, &path.parse().unwrap(), &map).is_some()
    }

    #[test]
    fn only_loopback_hosts_are_accepted() {
        for host in ["127.0.0.1:80", "localhost:8080", "localhost", "[::1]:9"] {
            assert!(!refused("/00ff/", &[("host", host)]), "{host}");
        }
        for host in ["example.com:80", "127.0.0.1.example.com", "localhost.example.com:80", "", "192.168.0.1"]
        {
            assert!(refused("/00ff/", &[("host", host)]), "{host}");
        }
        assert!(refused("/00ff/", &[]));
    }

    #[test]
    fn origin_must_be_the_host() {
        let with = |origin| refused("/00ff/", &[("host", "localhost:7"), ("origin", origin)]);
        assert!(!with("http://localhost:7"));
        for origin in ["http://localhost:8", "https://localhost:7", "null", "http://example.com"] {
            assert!(with(origin), "{origin}");
        }
        assert!(refused("/00ff/", &[("host", "localhost"), ("sec-fetch-site", "cross-site")]));
    }

    #[test]
    fn token_is_in_the_path_or_in_a_header() {
        let host = ("host", "localhost");
        assert!(refused("/", &[host]) && refused("/00fe/", &[host]) && refused("/x/00ff", &[host]));
        assert!(!refused("/metrics", &[host, ("authorization", "Bearer 00ff")]));
        assert!(refused("/metrics", &[host, ("authorization", "Bearer 00ff0")]));
    }

    #[test]
    fn tokens_differ() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_eq!(one.as_str().len(), 2 * TOKEN_BYTES);
        assert_ne!(one.as_str(), other.as_str());
    }
}
