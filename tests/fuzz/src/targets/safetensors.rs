//! Files in the safetensors format, as compiled models and as reproducers: errors name the file, and what is accepted survives saving.

use lz_engine::verify::Reproducer;

use super::artifact::round_trip;
use super::files;

pub fn run(input: &[u8]) -> bool {
    let path = files::write("input.safetensors", input);
    let is_model = round_trip(&path);
    let reproducer = match Reproducer::load(&path) {
        Ok(reproducer) => reproducer,
        Err(error) => {
            assert!(error.to_string().contains("input.safetensors"), "{error}");
            return is_model;
        }
    };
    // Compared as files: tensors print their addresses.
    let saved = |reproducer: &Reproducer, name: &str| {
        let path = files::path(name);
        std::fs::remove_file(&path).ok();
        reproducer.save(&path).unwrap_or_else(|error| panic!("{error}"));
        path
    };
    let copy = saved(&reproducer, "copy.safetensors");
    let again = Reproducer::load(&copy).unwrap_or_else(|error| panic!("{error}"));
    let second = saved(&again, "second.safetensors");
    assert_eq!(std::fs::read(copy).ok(), std::fs::read(second).ok());
    true
}
