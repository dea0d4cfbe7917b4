//! The program `lz-worker`: serves the kernels of a plugin to the host that spawned it.
//!
//! `lz-worker PLUGIN --allow FOLDER... [--manifest FILE | --pins LINES] [--key HEXADECIMAL]...`

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::serve::{WorkerKernels, serve};
use lz_engine::Engine;
use lz_plugin::loader::{Plugin, Trust};

/// The main function of `lz-worker`.
pub fn main() -> ExitCode {
    match run(std::env::args_os().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lz-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves the plugin of these arguments until the host ends, for programs that are their own worker
/// (`settings::set_own_program`).
pub fn run(arguments: Vec<OsString>) -> std::io::Result<()> {
    serve(move || offer(arguments))
}

const USAGE: &str =
    "usage: lz-worker PLUGIN --allow FOLDER... [--manifest FILE | --pins LINES] [--key HEXADECIMAL]...";

fn offer(arguments: Vec<OsString>) -> Result<WorkerKernels, String> {
    let mut arguments = arguments.into_iter();
    let plugin = PathBuf::from(arguments.next().ok_or(USAGE)?);
    let mut trust = Trust::default();
    while let Some(flag) = arguments.next() {
        let name = flag.to_string_lossy();
        let value = arguments.next().ok_or_else(|| format!("the flag `{name}` has no value; {USAGE}"))?;
        match flag.to_str() {
            Some("--allow") => trust.directories.push(value.into()),
            Some("--pins") => trust.manifest = Some(Trust::read_manifest(&value.to_string_lossy())),
            Some("--key") => trust.keys.push(Trust::read_key(&value.to_string_lossy())?),
            Some("--manifest") => {
                let read = Trust::read_manifest_file(value.as_ref()).map_err(|reason| reason.to_string())?;
                trust.manifest = Some(read);
            }
            _ => return Err(format!("unknown flag `{name}`; {USAGE}")),
        }
    }
    let engine =
        Engine::with_kernels(lz_ops::reference_kernels::kernels()).map_err(|error| error.to_string())?;
    let mut sha256 = String::new();
    let checked = trust.check(&plugin, &mut sha256).map_err(|reason| reason.to_string())?;
    // SAFETY: the purpose of this process is to run the plugin.
    let opened = unsafe { Plugin::open(&checked, &sha256, false) }.map_err(|reason| reason.to_string())?;
    // SAFETY: as above.
    let (_, kernels) = unsafe { opened.kernels(&engine, &plugin) }.map_err(|error| error.to_string())?;
    // SAFETY: as above.
    let descriptor =
        unsafe { opened.descriptor() }.ok_or("the plugin has no capability descriptor")?.to_owned();
    Ok(WorkerKernels { descriptor, kernels })
}
