//! Spans of selections (`lz.select`) and kernel runs (`lz.dispatch`) for an OpenTelemetry collector.
//!
//! The spans are ordinary `tracing` spans, with the target `lz::select`. A program that already exports its spans with
//! `tracing-opentelemetry` needs only [`enable`]; [`layer`] is for a program that does not.
//!
//! ```
//! use layerzero::{Engine, otel};
//! use tracing_subscriber::layer::SubscriberExt as _;
//!
//! let engine = Engine::new();
//! let (layer, exporter) = otel::layer("http://127.0.0.1:4318/v1/traces", "my service")?;
//! tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))?;
//! otel::enable(&engine, true);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use lz_engine::telemetry::ObserveOptions;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

/// The export of spans. Spans that were not sent yet are sent by [`flush`](Exporter::flush) and when it is dropped.
#[derive(Debug)]
pub struct Exporter(SdkTracerProvider);

impl Exporter {
    /// Sends all spans that have ended.
    pub fn flush(&self) -> Result<(), OTelSdkError> {
        self.0.force_flush()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // A collector that cannot be reached is no error of the program.
        let _ = self.0.shutdown();
    }
}

/// Whether a span is exported: those of LayerZero, and those of the program down to level `info`, which are their parents.
fn is_exported(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && (metadata.target().starts_with("lz::") || *metadata.level() <= Level::INFO)
}

/// A layer for a `tracing` subscriber that sends spans to the collector at `endpoint` (such as
/// `http://127.0.0.1:4318/v1/traces`) over OTLP, and its export. `service` is the name of the program.
pub fn layer<S>(
    endpoint: &str,
    service: &str,
) -> Result<(impl Layer<S> + use<S>, Exporter), ExporterBuildError>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let exporter = SpanExporter::builder().with_http().with_endpoint(endpoint).build()?;
    let resource = Resource::builder().with_service_name(service.to_owned()).build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("layerzero"));
    Ok((layer.with_filter(filter_fn(is_exported)), Exporter(provider)))
}

/// Has an engine create a span for each selection and each kernel run. Its calls then take the slow path.
pub fn enable(engine: &lz_engine::Engine, on: bool) {
    engine.observe(ObserveOptions { spans: on, ..ObserveOptions::default() });
}
