//! Log filters: an accepted one means the same when every area is written out.

use lz_engine::log::{AREAS, Levels};

pub fn run(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let levels: Levels = match text.parse() {
        Ok(levels) => levels,
        Err(error) => {
            assert!(error.contains('`') && error.contains("unknown"), "{error}");
            return false;
        }
    };
    let areas = AREAS.iter().zip(levels.by_area());
    let written: Vec<String> = areas.map(|(area, severity)| format!("{area}={severity}")).collect();
    assert_eq!(written.join(",").parse(), Ok(levels));
    // A general level has no effect if every area has its own, wherever it stands.
    assert_eq!(format!("{},off", written.join(", ")).parse(), Ok(levels));
    assert_eq!(format!("trace,{}", written.join(" , ")).parse(), Ok(levels));
    true
}
