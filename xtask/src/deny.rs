//! Checks all dependencies against `deny.toml`: licenses, banned crates and sources.
//!
//! `cargo deny` does this, and also checks for security advisories. It takes minutes to compile, so it runs only where it is
//! installed. Elsewhere the rules on licenses, bans and sources are checked here against the output of `cargo metadata`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Runs `cargo deny`, or the built-in check where it is not installed.
pub fn check(root: &Path) -> Result<()> {
    let succeeds = |arguments: &[&str]| {
        Command::new("cargo")
            .args(arguments)
            .current_dir(root)
            .output()
            .is_ok_and(|output| output.status.success())
    };
    if !succeeds(&["deny", "--version"]) {
        println!(
            "SKIPPED: security advisories, because cargo-deny is not installed; to install it, run `cargo install --locked cargo-deny`"
        );
        return check_metadata(root);
    }
    command::run(root, "cargo", &["deny", "check", "bans", "licenses", "sources"])?;
    if !succeeds(&["deny", "fetch", "db"]) {
        println!("SKIPPED: security advisories, because the advisory database cannot be downloaded");
        return Ok(());
    }
    command::run(root, "cargo", &["deny", "check", "--disable-fetch", "advisories"])
}

fn check_metadata(root: &Path) -> Result<()> {
    let path = root.join("deny.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let rules = Rules::parse(&text)?;
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root)
        .output()
        .context("could not start cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("parsing the output of cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let violations: Vec<String> = packages.iter().flat_map(|package| rules.violations(package)).collect();
    if !violations.is_empty() {
        bail!("dependencies violate deny.toml:\n  {}", violations.join("\n  "));
    }
    println!("{} packages comply with deny.toml (licenses, bans, sources)", packages.len());
    Ok(())
}

/// The rules of `deny.toml` that are checked here.
struct Rules {
    licenses: Vec<String>,
    /// Licenses that are allowed for one crate: crate and license.
    exceptions: Vec<(String, String)>,
    /// Banned crates, each with the reason.
    banned: Vec<(String, String)>,
}

impl Rules {
    fn parse(text: &str) -> Result<Rules> {
        let config: Value = toml::from_str(text).context("parsing deny.toml")?;
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let licenses = list(&config["licenses"]["allow"]).iter().map(string).collect();
        let exceptions = list(&config["licenses"]["exceptions"])
            .iter()
            .flat_map(|exception| {
                let name = string(&exception["crate"]);
                list(&exception["allow"])
                    .iter()
                    .map(|license| (name.clone(), string(license)))
                    .collect::<Vec<_>>()
            })
            .collect();
        let banned = list(&config["bans"]["deny"])
            .iter()
            .map(|ban| (string(&ban["crate"]), string(&ban["reason"])))
            .collect();
        Ok(Rules { licenses, exceptions, banned })
    }

    /// The rules that a package of `cargo metadata` violates.
    fn violations(&self, package: &Value) -> Vec<String> {
        let name = package["name"].as_str().unwrap_or_default();
        let mut violations = Vec::new();
        if let Some((_, reason)) = self.banned.iter().find(|(banned, _)| banned == name) {
            violations.push(format!("{name} is banned: {reason}"));
        }
        if let Some(source) = package["source"].as_str()
            && source != CRATES_IO
        {
            violations.push(format!("{name} comes from {source}; only crates.io is allowed"));
        }
        let allowed = |license: &str| {
            self.licenses.iter().any(|one| one == license)
                || self.exceptions.iter().any(|(exempt, one)| exempt == name && one == license)
        };
        match package["license"].as_str() {
            Some(expression) if satisfied(expression, &allowed) => {}
            Some(expression) => violations.push(format!("{name}: license `{expression}` is not allowed")),
            None => violations.push(format!("{name} states no license")),
        }
        violations
    }
}

/// Whether allowed licenses satisfy an SPDX expression. `A/B` is the old spelling of `A OR B`.
fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = tokens.as_slice();
    any(&mut rest, allowed) && rest.is_empty()
}

fn any(tokens: &mut &[&str], allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut result = all(tokens, allowed);
    while take(tokens, "OR") {
        result |= all(tokens, allowed);
    }
    result
}

fn all(tokens: &mut &[&str], allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut result = term(tokens, allowed);
    while take(tokens, "AND") {
        result &= term(tokens, allowed);
    }
    result
}

fn term(tokens: &mut &[&str], allowed: &dyn Fn(&str) -> bool) -> bool {
    if take(tokens, "(") {
        let result = any(tokens, allowed);
        return take(tokens, ")") && result;
    }
    let Some((license, rest)) = tokens.split_first() else { return false };
    *tokens = rest;
    if !take(tokens, "WITH") {
        return allowed(license);
    }
    let Some((exception, rest)) = tokens.split_first() else { return false };
    *tokens = rest;
    allowed(&format!("{license} WITH {exception}"))
}

/// Consumes the next token if it is the given operator.
fn take(tokens: &mut &[&str], operator: &str) -> bool {
    match tokens.split_first() {
        Some((first, rest)) if first.eq_ignore_ascii_case(operator) => {
            *tokens = rest;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn license_expressions_are_evaluated() {
        let allowed = |license: &str| ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].contains(&license);
        for expression in [
            "MIT",
            "GPL-3.0 OR MIT",
            "GPL-3.0/MIT",
            "GPL-3.0 or MIT",
            "MIT AND ISC",
            "(GPL-3.0 OR MIT) AND ISC",
            "GPL-3.0 AND MPL-2.0 OR ISC",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        ] {
            assert!(satisfied(expression, &allowed), "{expression}");
        }
        for expression in ["", "GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "(MIT", "MIT ISC", "MIT WITH"] {
            assert!(!satisfied(expression, &allowed), "{expression}");
        }
    }

    #[test]
    fn violations_name_the_crate_and_the_rule() {
        let rules = Rules::parse(
            r#"
            [licenses]
            allow = ["MIT"]
            exceptions = [{ crate = "colored", allow = ["MPL-2.0"] }]
            [bans]
            deny = [{ crate = "serde_yaml", reason = "unmaintained" }]
            "#,
        )
        .unwrap();
        let violations = |name: &str, license: Value, source: &str| {
            rules
                .violations(&serde_json::json!({ "name": name, "license": license, "source": source }))
                .join("; ")
        };
        assert_eq!(violations("anyhow", "MIT OR GPL-3.0".into(), CRATES_IO), "");
        assert_eq!(violations("colored", "MPL-2.0".into(), CRATES_IO), "");
        assert_eq!(
            violations("other", "MPL-2.0".into(), CRATES_IO),
            "other: license `MPL-2.0` is not allowed"
        );
        assert_eq!(violations("other", Value::Null, CRATES_IO), "other states no license");
        assert_eq!(violations("serde_yaml", "MIT".into(), CRATES_IO), "serde_yaml is banned: unmaintained");
        let from_git = violations("other", "MIT".into(), "git+https://example.com/other");
        assert!(from_git.contains("only crates.io is allowed"), "{from_git}");
    }
}
