//! Builds a copy of the sources that has all mutants behind switches, and finds out which of them do not compile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::list::{Genre, Mutant};
use super::switches;

/// The file that gets [`SWITCH`].
const LIBRARY: &str = "lz-core/src/lib.rs";

/// Written before the copy of `lz-core`, in its first line.
const FEATURES: &str =
    "#![feature(core_intrinsics, const_eval_select)] #![allow(internal_features, unused_features)] ";

/// Appended to the copy of `lz-core`. The function does not allocate: tests count allocations. The compiler evaluates no mutant.
const SWITCH: &str = r#"
extern crate self as lz_core;

#[doc(hidden)]
#[allow(missing_docs)]
pub const fn mutant(number: u32) -> bool {
    const fn none(_: u32) -> bool {
        false
    }
    std::intrinsics::const_eval_select((number,), none, is_active)
}

#[allow(unsafe_code)]
fn is_active(number: u32) -> bool {
    use std::sync::atomic::{AtomicU32, Ordering};
    static ACTIVE: AtomicU32 = AtomicU32::new(u32::MAX);
    let mut active = ACTIVE.load(Ordering::Relaxed);
    if active == u32::MAX {
        active = unsafe {
            let text = libc::getenv(c"LZ_MUTANT".as_ptr());
            if text.is_null() { 0 } else { libc::atoi(text) as u32 }
        };
        ACTIVE.store(active, Ordering::Relaxed);
    }
    active == number
}

#[doc(hidden)]
#[allow(missing_docs, missing_debug_implementations)]
#[derive(Clone)]
pub enum Either<Changed, Original> {
    Changed(Changed),
    Original(Original),
}

impl<Item, Changed: Iterator<Item = Item>, Original: Iterator<Item = Item>> Iterator for Either<Changed, Original> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        match self {
            Either::Changed(items) => items.next(),
            Either::Original(items) => items.next(),
        }
    }
}
"#;

/// A test program.
#[derive(Clone)]
pub struct Program {
    pub path: PathBuf,
    /// The folder of its package.
    pub folder: PathBuf,
}

/// The build of a copy, with the numbers of the mutants that it does not have.
pub struct Build<'m> {
    root: &'m Path,
    tree: PathBuf,
    mutants: &'m [Mutant],
    /// Mutants that do not compile.
    pub unviable: BTreeSet<u32>,
    /// Mutants that cannot be switched.
    pub left: BTreeSet<u32>,
}

impl<'m> Build<'m> {
    /// Copies the sources.
    pub fn new(root: &'m Path, mutants: &'m [Mutant]) -> Result<Build<'m>> {
        let tree = root.join("target/mutants/switched/tree");
        let changed = mutants.iter().map(|mutant| &*mutant.file).chain([LIBRARY]).collect();
        copy_tree(root, &tree, &changed)?;
        Ok(Build { root, tree, mutants, unviable: BTreeSet::new(), left: BTreeSet::new() })
    }

    /// The mutants that the build has, with their numbers.
    pub fn present(&self) -> Vec<(u32, &'m Mutant)> {
        numbered(self.mutants)
            .filter(|(number, _)| !self.unviable.contains(number) && !self.left.contains(number))
            .collect()
    }

    /// Compiles what compiles; returns the test programs by package.
    pub fn compile(&mut self) -> Result<BTreeMap<String, Vec<Program>>> {
        let packages: BTreeSet<&str> = self.mutants.iter().map(|mutant| &*mutant.package).collect();
        let packages: Vec<&str> = packages.into_iter().flat_map(|package| ["-p", package]).collect();
        loop {
            self.write()?;
            let (is_ok, messages) = self.cargo(&[&["check", "--lib"], &*packages].concat())?;
            if is_ok {
                break;
            }
            let before = self.unviable.len() + self.left.len();
            let others = self.leave_out(&messages)?;
            let found = self.unviable.len() + self.left.len() - before;
            println!("{found} mutants do not compile");
            ensure!(found > 0, "the copy does not compile:\n{}", others.join("\n"));
        }
        let (is_ok, messages) =
            self.cargo(&[&["test", "--no-run", "--lib", "--tests"], &*packages].concat())?;
        ensure!(is_ok, "the tests of the copy do not compile");
        let mut programs: BTreeMap<String, Vec<Program>> = BTreeMap::new();
        for message in &messages {
            if let (Some(path), Some(manifest)) =
                (message["executable"].as_str(), message["manifest_path"].as_str())
            {
                let folder = Path::new(manifest).parent().context("a package has a folder")?;
                // Folders of packages with mutants have the names of the packages.
                let package =
                    folder.file_name().context("a folder has a name")?.to_string_lossy().into_owned();
                programs
                    .entry(package)
                    .or_default()
                    .push(Program { path: path.into(), folder: folder.into() });
            }
        }
        Ok(programs)
    }

    /// Writes the sources with all mutants that may still compile.
    fn write(&mut self) -> Result<()> {
        let mut by_file: BTreeMap<&str, Vec<switches::Numbered<'_>>> =
            self.mutants.iter().map(|mutant| (&*mutant.file, Vec::new())).collect();
        for (number, mutant) in self.present() {
            by_file.entry(&mutant.file).or_default().push((number, mutant));
        }
        for (file, mutants) in by_file {
            let source =
                fs::read_to_string(self.root.join(file)).with_context(|| format!("reading {file}"))?;
            let inserted = switches::insert(&source, &mutants).with_context(|| file.to_owned())?;
            self.unviable.extend(inserted.forbidden);
            self.left.extend(inserted.constant);
            write_if_changed(&self.tree.join(file), inserted.text.as_bytes())?;
        }
        let library = fs::read_to_string(self.root.join(LIBRARY))?;
        write_if_changed(&self.tree.join(LIBRARY), [FEATURES, &library, SWITCH].concat().as_bytes())
    }

    /// Leaves out the mutants that errors are about; returns other errors.
    fn leave_out(&mut self, messages: &[Value]) -> Result<Vec<String>> {
        let mut others = Vec::new();
        for message in messages.iter().map(|message| &message["message"]) {
            let spans = message["spans"].as_array().filter(|spans| !spans.is_empty());
            let Some(spans) = spans.filter(|_| message["level"] == "error") else { continue };
            let mut part = None;
            for span in spans.iter().filter(|span| span["is_primary"] == true).chain(spans) {
                let (Some(file), Some(start)) = (span["file_name"].as_str(), span["byte_start"].as_u64())
                else {
                    continue;
                };
                let Ok(text) = fs::read_to_string(self.tree.join(file)) else { continue };
                part = part.or_else(|| switches::part_of(&text, &(start as usize..start as usize)));
            }
            match part {
                Some(part) if part.is_change => drop(self.unviable.insert(part.number)),
                Some(part) => drop(self.left.insert(part.number)),
                None if message["code"]["code"] == "E0004" => self.leave_out_arms(spans)?,
                None if self.leave_out_iterators(spans) => {}
                None => others.extend(message["rendered"].as_str().map(str::to_owned)),
            }
        }
        Ok(others)
    }

    /// A match whose arms are all needed: none of them can be deleted.
    fn leave_out_arms(&mut self, spans: &[Value]) -> Result<()> {
        for (file, line) in primary(spans) {
            // The copy has the lines of the original.
            let source =
                fs::read_to_string(self.root.join(file)).with_context(|| format!("reading {file}"))?;
            let lines = switches::lines_of_match(&source, line)?;
            let arms =
                numbered(self.mutants).filter(|(_, one)| one.genre == Genre::MatchArm && one.file == file);
            let arms = arms.filter(|(_, one)| lines.contains(&one.start.line)).map(|(number, _)| number);
            self.unviable.extend(arms);
        }
        Ok(())
    }

    /// The type of an iterator that does not fit is an error of its function: all mutants of the nearest one are left to
    /// cargo-mutants. Returns whether there are any.
    fn leave_out_iterators(&mut self, spans: &[Value]) -> bool {
        let before = self.left.len();
        for (file, line) in primary(spans) {
            let iterators = || numbered(self.mutants).filter(|(_, one)| one.returns_impl && one.file == file);
            let nearest = iterators().map(|(_, one)| one.start.line).min_by_key(|at| at.abs_diff(line));
            let of_it = iterators().filter(|(_, one)| Some(one.start.line) == nearest);
            self.left.extend(of_it.map(|(number, _)| number));
        }
        self.left.len() > before
    }

    /// Runs cargo in the copy: whether it succeeded, and its messages.
    fn cargo(&self, arguments: &[&str]) -> Result<(bool, Vec<Value>)> {
        let output = Command::new("cargo")
            .args(arguments)
            .arg("--message-format=json")
            .env("RUSTFLAGS", "--cap-lints=warn")
            // `FEATURES` need it.
            .env("RUSTC_BOOTSTRAP", "lz_core")
            .env("CARGO_TARGET_DIR", self.root.join("target/mutants/switched/target"))
            .current_dir(&self.tree)
            .stderr(Stdio::null())
            .output()
            .context("could not start cargo")?;
        let messages = String::from_utf8(output.stdout)?;
        let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ok((output.status.success(), messages))
    }
}

/// The files and lines that an error is about.
fn primary(spans: &[Value]) -> impl Iterator<Item = (&str, usize)> {
    let primary = spans.iter().filter(|span| span["is_primary"] == true);
    primary.filter_map(|span| Some((span["file_name"].as_str()?, span["line_start"].as_u64()? as usize)))
}

/// Mutants with their numbers, from 1.
pub fn numbered(mutants: &[Mutant]) -> impl Iterator<Item = (u32, &Mutant)> {
    (1..).zip(mutants)
}

/// Copies the files that git knows or would add, except `changed`; files that are the same keep their time, so that nothing is
/// built twice.
fn copy_tree(root: &Path, tree: &Path, changed: &BTreeSet<&str>) -> Result<()> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()
        .context("could not start git")?;
    ensure!(output.status.success(), "git ls-files failed");
    for name in String::from_utf8(output.stdout)?
        .split('\0')
        .filter(|name| !name.is_empty() && !changed.contains(name))
    {
        let (from, to) = (root.join(name), tree.join(name));
        if let Ok(target) = fs::read_link(&from) {
            if fs::symlink_metadata(&to).is_err() {
                fs::create_dir_all(to.parent().context("a link has a folder")?)?;
                std::os::unix::fs::symlink(target, &to)?;
            }
        } else if from.is_file() {
            write_if_changed(&to, &fs::read(&from).with_context(|| format!("reading {}", from.display()))?)?;
        }
    }
    Ok(())
}

fn write_if_changed(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|existing| existing == content) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().context("a file has a folder")?)?;
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}
