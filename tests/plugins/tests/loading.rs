//! Valid and faulty plugins in C, C++ and Rust, loaded into the process.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ed25519_dalek::{Signer, SigningKey};
use lz_core::{Error, ReasonCode, TensorView};
use lz_engine::Engine;
use lz_ops::{NormRms, norm_rms};
use lz_plugin::loader::{self, LoadedPlugin, Trust};
use support::{compile, folder};

/// An engine with the reference kernels of all operations.
fn reference_engine() -> lz_engine::Engine {
    lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap()
}

/// The Rust plugin, which is the library of this package.
fn rust_plugin() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let name = "liblz_test_plugin.so";
    let found = [folder.join(name), folder.join("..").join(name)].into_iter().find(|path| path.is_file());
    let found = found.unwrap_or_else(|| panic!("{name} is not next to the test executable"));
    let copy = support::folder().join(name);
    std::fs::copy(found, &copy).unwrap();
    copy
}

fn trust() -> Trust {
    Trust::directories([folder()])
}

fn load(engine: &Engine, path: &Path, trust: &Trust) -> Result<LoadedPlugin, Error> {
    // SAFETY: the plugins of this repository.
    unsafe { loader::load(engine, path, trust) }
}

fn load_error(path: &Path, trust: &Trust) -> Error {
    let engine = reference_engine();
    let before = engine.registry().kernels().count();
    let error = load(&engine, path, trust).unwrap_err();
    assert_eq!(engine.registry().kernels().count(), before, "a rejected plugin registers nothing");
    error
}

fn call(engine: &Engine, eps: f32) -> Result<Vec<f32>, Error> {
    let x: Vec<f32> = (0..24).map(|at| at as f32 - 7.5).collect();
    let args = NormRms::new(TensorView::from_slice(&x, &[3, 8]).unwrap()).eps(eps);
    let output = norm_rms(engine, args)?.output;
    Ok(output.view().as_slice::<f32>().unwrap().to_vec())
}

fn assert_equal_to_reference(path: &Path, backend: &str) {
    let engine = reference_engine();
    let loaded = load(&engine, path, &trust()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(loaded.backend, backend);
    assert_eq!(loaded.kernels, [format!("{backend}.norm.rms")]);
    engine.lock("norm.rms", &format!("{backend}.norm.rms")).unwrap();
    let expected = call(&reference_engine(), 1e-5).unwrap();
    for (found, expected) in call(&engine, 1e-5).unwrap().iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-6, "{found} should be {expected}");
    }
    engine.unlock("norm.rms").unwrap();
    engine.unregister_backend(backend);
    assert_eq!(
        call(&engine, 1e-5).unwrap(),
        expected,
        "the reference kernel runs after the plugin was unregistered"
    );
}

#[test]
fn a_plugin_in_c_runs() {
    assert_equal_to_reference(&compile("plugin.c", ""), "c");
}

#[test]
fn plugins_of_other_minor_versions_run() {
    assert_equal_to_reference(&compile("plugin.c", "OLDER"), "c");
    assert_equal_to_reference(&compile("plugin.c", "NEWER"), "c");
}

#[test]
fn a_plugin_in_cpp_runs() {
    assert_equal_to_reference(&compile("plugin.cpp", ""), "cpp");
}

#[test]
fn a_plugin_in_rust_runs() {
    assert_equal_to_reference(&rust_plugin(), "rusty");
}

#[test]
fn an_exception_fails_only_its_call() {
    let engine = reference_engine();
    load(&engine, &compile("plugin.cpp", ""), &trust()).unwrap();
    assert_eq!(call(&engine, 0.25).unwrap(), call(&reference_engine(), 0.25).unwrap());
    assert_eq!(engine.fallbacks(), 1, "fell back to the reference kernel");
    engine
        .configure([("fallback_enabled".to_owned(), lz_engine::policy::layer::SettingInput::Bool(false))])
        .unwrap();
    let error = call(&engine, 0.25).unwrap_err();
    assert!(matches!(error, Error::KernelExecution { .. }), "{error}");
    assert!(error.to_string().contains("eps 0.25 is rejected"), "{error}");
}

#[test]
fn run_failures_contain_the_error_message_of_the_plugin() {
    for (fault, message) in [
        ("RUN", "requested test failure"),
        ("UNTERMINATED", "xxxxxxxx"),
        ("STATUS", "unknown status 77"),
        ("WORKSPACE", "workspace"),
    ] {
        let engine = reference_engine();
        load(&engine, &compile("plugin.c", fault), &trust()).unwrap();
        let off = lz_engine::policy::layer::SettingInput::Bool(false);
        engine.configure([("fallback_enabled".to_owned(), off)]).unwrap();
        let error = call(&engine, 1e-5).unwrap_err();
        assert!(error.to_string().contains(message), "{fault}: {error}");
    }
}

#[test]
fn a_plugin_that_violates_the_contract_is_rejected() {
    for (fault, code) in [
        ("VERSION", ReasonCode::PluginVersionMismatch),
        ("OPERATION_VERSION", ReasonCode::PluginVersionMismatch),
        ("SYMBOL", ReasonCode::PluginSymbolMissing),
        ("NO_RUN", ReasonCode::PluginSymbolMissing),
        ("INIT", ReasonCode::PluginInitFailed),
        ("DESCRIPTOR", ReasonCode::CapabilitiesSchemaMismatch),
    ] {
        let error = load_error(&compile("plugin.c", fault), &trust());
        assert!(error.has(code), "{fault}: {error}");
    }
    let text = folder().join("not-a-library.so");
    fs::write(&text, "this is not ELF").unwrap();
    assert!(load_error(&text, &trust()).has(ReasonCode::PluginLoadFailed));
}

#[test]
fn truncated_plugins_are_rejected_before_they_are_mapped() {
    let whole = fs::read(compile("plugin.c", "")).unwrap();
    let path = folder().join("truncated.so");
    // Half of a page less is enough for SIGBUS in the dynamic loader, and so is a file that ends after its headers.
    for end in [0, 3, 64, 700, 4096, whole.len() / 2, whole.len() - 2048, whole.len() - 1] {
        fs::write(&path, &whole[..end]).unwrap();
        let error = load_error(&path, &trust());
        assert!(error.has(ReasonCode::PluginLoadFailed), "{end} of {} bytes: {error}", whole.len());
        let expected = if end < 4 { "no ELF shared library" } else { "truncated" };
        assert!(error.to_string().contains(expected), "{end} of {} bytes: {error}", whole.len());
    }
    fs::write(&path, &whole).unwrap();
    assert_equal_to_reference(&path, "c");
}

#[test]
fn plugins_outside_of_the_allowed_folders_are_rejected() {
    let plugin = compile("plugin.c", "");
    assert!(load_error(&plugin, &Trust::default()).has(ReasonCode::PluginPathNotAllowed));
    assert!(
        load_error(&plugin, &Trust::directories(["/usr/lib".into()])).has(ReasonCode::PluginPathNotAllowed)
    );
    // A symbolic link is judged by its target.
    let elsewhere = Path::new(env!("CARGO_TARGET_TMPDIR")).join("elsewhere.so");
    fs::copy(&plugin, &elsewhere).unwrap();
    let link = folder().join("link.so");
    fs::remove_file(&link).ok();
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    assert!(load_error(&link, &trust()).has(ReasonCode::PluginPathNotAllowed));
    assert!(load_error(&folder().join("absent.so"), &trust()).has(ReasonCode::PluginPermission));
}

#[test]
fn files_and_folders_writable_by_others_are_rejected() {
    let plugin = folder().join("writable.so");
    fs::copy(compile("plugin.c", ""), &plugin).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(load_error(&plugin, &trust()).has(ReasonCode::PluginPermission));
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    assert_equal_to_reference(&plugin, "c");
    let open = folder().join("open");
    fs::create_dir_all(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    fs::copy(&plugin, open.join("plugin.so")).unwrap();
    assert!(load_error(&open.join("plugin.so"), &trust()).has(ReasonCode::PluginPermission));
}

#[test]
fn hashes_and_signatures_are_verified() {
    let plugin = folder().join("signed.so");
    fs::copy(compile("plugin.c", ""), &plugin).unwrap();
    let engine = reference_engine();
    let hash = load(&engine, &plugin, &trust()).unwrap().sha256;
    let pinned = |text: &str| Trust { manifest: Some(Trust::read_manifest(text)), ..trust() };
    let engine = reference_engine();
    load(&engine, &plugin, &pinned(&format!("{hash}  signed.so\n"))).unwrap();
    let other = format!("{}  signed.so\n", "0".repeat(64));
    assert!(load_error(&plugin, &pinned(&other)).has(ReasonCode::PluginHashMismatch));
    assert!(load_error(&plugin, &pinned("")).has(ReasonCode::PluginHashMismatch));

    let key = SigningKey::from_bytes(&[7; 32]);
    let signed = Trust { keys: vec![key.verifying_key()], ..trust() };
    let signature_path = folder().join("signed.so.sig");
    fs::remove_file(&signature_path).ok();
    assert!(load_error(&plugin, &signed).has(ReasonCode::PluginSignatureInvalid));
    fs::write(&signature_path, key.sign(&fs::read(&plugin).unwrap()).to_bytes()).unwrap();
    let engine = reference_engine();
    load(&engine, &plugin, &signed).unwrap();
    fs::write(&signature_path, SigningKey::from_bytes(&[8; 32]).sign(&fs::read(&plugin).unwrap()).to_bytes())
        .unwrap();
    assert!(load_error(&plugin, &signed).has(ReasonCode::PluginSignatureInvalid));
}

#[test]
fn a_plugin_stays_loaded_while_a_call_runs() {
    let engine = reference_engine();
    let path = compile("plugin.c", "");
    let expected = call(&reference_engine(), 1e-5).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let found = call(&engine, 1e-5).unwrap();
                    assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6));
                }
            });
        }
        for _ in 0..20 {
            load(&engine, &path, &trust()).unwrap();
            engine.unregister_backend("c");
        }
    });
}
