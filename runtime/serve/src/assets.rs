//! The files of the page, embedded. Plain modules: no build step, nothing from another host.

/// A file of the page.
#[derive(Debug)]
pub struct Asset {
    /// Its name in the URL.
    pub name: &'static str,
    /// Its media type.
    pub media: &'static str,
    /// Its content.
    pub text: &'static str,
}

macro_rules! assets {
    ($media:literal: $($name:literal),* $(,)?) => {
        &[$(Asset { name: $name, media: $media, text: include_str!(concat!("../assets/", $name)) }),*]
    };
}

/// The page itself.
pub const PAGE: &str = include_str!("../assets/index.html");

/// Its style sheet.
pub const STYLES: &[Asset] = assets!("text/css; charset=utf-8": "style.css");

/// Its modules; a module imports only earlier ones.
pub const SCRIPTS: &[Asset] = assets!(
    "text/javascript; charset=utf-8":
    "dom.js", "data.js", "plot.js", "live.js", "operations.js", "measurements.js", "health.js", "policy.js",
    "lockfile.js", "processes.js", "app.js",
);

/// The file with this name.
pub fn find(name: &str) -> Option<&'static Asset> {
    STYLES.iter().chain(SCRIPTS).find(|asset| asset.name == name)
}
