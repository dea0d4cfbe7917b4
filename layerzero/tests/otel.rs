//! Spans arrive at an OTLP endpoint on loopback.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use layerzero::otel;
use layerzero::prelude::*;
use tracing_subscriber::layer::SubscriberExt as _;

/// A request that the collector received: its first line and its body.
type Received = (String, Vec<u8>);

/// Answers every request of one connection with 200.
fn serve(stream: std::net::TcpStream, received: &Sender<Received>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            let header = header.trim().to_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if header.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        received.send((first.trim().to_owned(), body)).unwrap();
        (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    }
}

/// The fields of a protobuf message: number and content of those with a length.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    fn number(message: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0u64, 0);
        while let [byte, rest @ ..] = *message {
            *message = rest;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut all = Vec::new();
    while !message.is_empty() {
        let key = number(&mut message);
        let length = match key & 7 {
            0 => {
                number(&mut message);
                continue;
            }
            1 => 8,
            5 => 4,
            _ => number(&mut message) as usize,
        };
        let (content, rest) = message.split_at(length);
        all.push((key >> 3, content));
        message = rest;
    }
    all
}

fn field<'a>(message: &'a [u8], path: &[u64]) -> Vec<&'a [u8]> {
    path.iter().fold(vec![message], |messages, wanted| {
        let all = messages.into_iter().flat_map(fields);
        all.filter(|(number, _)| number == wanted).map(|(_, content)| content).collect()
    })
}

fn text(message: &[u8], path: &[u64]) -> String {
    field(message, path).first().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
}

#[test]
fn spans_of_selections_and_runs_arrive_under_the_span_of_the_program() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    let (received, requests) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            serve(stream.unwrap(), &received);
        }
    });
    let engine = Engine::new();
    let x = [3.0f32, 4.0, 0.0, 0.0];
    let call =
        || ops::norm_rms(&engine, ops::NormRms::new(TensorView::from_slice(&x, &[1, 4]).unwrap())).unwrap();
    let (layer, exporter) = otel::layer(&endpoint, "a test").unwrap();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        call();
        otel::enable(&engine, true);
        tracing::info_span!("request").in_scope(call);
        otel::enable(&engine, false);
        call();
    });
    exporter.flush().unwrap();

    let (first, body) = requests.try_recv().unwrap();
    assert_eq!(first, "POST /v1/traces HTTP/1.1");
    // ResourceSpans 1 → Resource 1 → KeyValue 1 → value 2 → string 1.
    let resources = field(&body, &[1, 1, 1]);
    assert!(
        resources.iter().any(|pair| text(pair, &[1]) == "service.name" && text(pair, &[2, 1]) == "a test")
    );
    // ResourceSpans 1 → ScopeSpans 2 → Span 2.
    let spans = field(&body, &[1, 2, 2]);
    let name = |span: &[u8]| text(span, &[5]);
    let mut names: Vec<String> = spans.iter().map(|span| name(span)).collect();
    names.sort();
    assert_eq!(names, ["lz.dispatch", "lz.select", "request"]);
    let of = |wanted: &str| *spans.iter().find(|span| name(span) == wanted).unwrap();
    let request = field(of("request"), &[2]);
    for one in ["lz.select", "lz.dispatch"] {
        assert_eq!(field(of(one), &[4]), request, "{one} is a child of the program's span");
    }
    let attributes: Vec<(String, String)> =
        field(of("lz.dispatch"), &[9]).iter().map(|pair| (text(pair, &[1]), text(pair, &[2, 1]))).collect();
    let context = ops::NormRms::new(TensorView::from_slice(&x, &[1, 4]).unwrap()).check().unwrap().context();
    let kernel = engine.which(&ops::NORM_RMS, &context).unwrap().kernel;
    assert!(attributes.contains(&("operation".to_owned(), "norm.rms".to_owned())), "{attributes:?}");
    assert!(attributes.contains(&("kernel".to_owned(), kernel)), "{attributes:?}");
    drop(exporter);
    assert!(requests.try_recv().is_err(), "nothing else was exported");
}
