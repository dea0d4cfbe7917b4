//! A root folder with compilers and an emulator for aarch64, and cargo in it.
//!
//! Compilers, the standard library and the emulator are packages of Debian, which are unpacked into a folder below `target`; nothing
//! is installed. Cargo runs there with `chroot`, in namespaces of its own: the checkout and cargo's home are mounted, and
//! `binfmt_misc` starts qemu for programs of aarch64, including those that tests start. Needs Linux 6.7 or later, which has a
//! `binfmt_misc` for each user namespace, and apt.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{command, files};

/// The release whose rustc is new enough for the workspace.
const RELEASE: &str = "sid";

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// `base-files` has the links of a merged `/usr`; the other packages bring their dependencies.
const PACKAGES: &[&str] = &[
    "base-files",
    "bash",
    "cargo",
    "coreutils",
    "g++",
    "g++-aarch64-linux-gnu",
    "libstd-rust-dev:arm64",
    "qemu-user",
    "rustc",
];

/// Links that scripts of packages would create.
const LINKS: [(&str, &str); 2] = [("usr/bin/sh", "bash"), ("usr/bin/cc", "gcc")];

/// Selects cross compilers for aarch64, and the compilers of this machine for build scripts and procedural macros.
const ENVIRONMENT: &[&str] = &[
    "PATH=/usr/bin:/usr/sbin",
    "CARGO_NET_OFFLINE=true",
    "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=gcc",
    "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc",
    "CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc",
    "CXX_aarch64_unknown_linux_gnu=aarch64-linux-gnu-g++",
    "AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar",
    // The extension uses the stable ABI and needs no interpreter of the target to be built.
    "PYO3_NO_PYTHON=1",
    // Qemu keeps two real-time signals for itself, and programs lack as many: by default the last ones, of which `lz-device` uses one. With
    // this map they lack number 34 instead.
    "QEMU_RTSIG_MAP=32 34 2,35 36 27",
];

/// The start of an ELF file of aarch64 and the bits of it that count, as `binfmt_misc` writes them.
const MAGIC: &str = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00";
const MASK: &str = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff";

/// Runs in new namespaces: arguments are the root, the registration of the emulator, the folders to mount (colon-separated), and the
/// command.
const ENTER: &str = r#"
set -e
root=$1 registration=$2 folders=$3
shift 3
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
printf '%s' "$registration" > /proc/sys/fs/binfmt_misc/register
IFS=:
for folder in $folders; do
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
done
exec chroot "$root" /usr/bin/env -i "$@"
"#;

/// The root folder with the packages.
pub struct Debian {
    checkout: PathBuf,
    root: PathBuf,
}

impl Debian {
    /// Creates the root, unless it has the packages already.
    pub fn ensure(checkout: &Path, mirror: Option<&str>) -> Result<Debian> {
        let checkout = checkout.canonicalize()?;
        let folder = checkout.join("target/aarch64");
        let debian = Debian { root: folder.join("root"), checkout };
        // Written last.
        let stamp = folder.join("packages.txt");
        let wanted = format!("{RELEASE}\n{}\n", PACKAGES.join("\n"));
        if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
            return Ok(debian);
        }
        let mirror = match mirror {
            Some(mirror) => mirror.to_owned(),
            None => mirror_of_this_machine()?,
        };
        let archives = download(&folder.join("apt"), &mirror).context("downloading the packages")?;
        debian.unpack(&archives).context("unpacking the packages")?;
        fs::write(&stamp, wanted)?;
        fs::remove_dir_all(folder.join("apt"))?;
        Ok(debian)
    }

    fn unpack(&self, archives: &Path) -> Result<()> {
        files::create_empty(&self.root)?;
        let all = files::walk(archives)?;
        for path in in_order(all.iter().map(PathBuf::as_path)) {
            let arguments = ["--extract", &path.to_string_lossy(), &self.root.to_string_lossy()];
            command::run(&self.checkout, "dpkg-deb", &arguments)?;
        }
        for (link, to) in LINKS {
            let link = self.root.join(link);
            if fs::symlink_metadata(&link).is_err() {
                std::os::unix::fs::symlink(to, link)?;
            }
        }
        Ok(())
    }

    /// Runs cargo for aarch64 in the root; the environment has settings as `NAME=VALUE`.
    pub fn cargo(&self, arguments: &[&str], environment: &[String]) -> Result<()> {
        let home = cargo_home()?;
        let folders = [&self.checkout, &home, Path::new("/proc"), Path::new("/dev"), Path::new("/sys")]
            .map(|folder: &Path| folder.to_string_lossy().into_owned());
        ensure!(folders.iter().all(|folder| !folder.contains(':')), "the path of the checkout has a colon");
        let own = [
            format!("--chdir={}", self.checkout.display()),
            format!("CARGO_HOME={}", home.display()),
            format!("CARGO_TARGET_DIR={}", self.checkout.join("target/aarch64/build").display()),
            format!("CARGO_BUILD_TARGET={TARGET}"),
            "HOME=/root".to_owned(),
        ];
        let (root, folders, emulator) = (
            self.root.to_string_lossy(),
            folders.join(":"),
            registration(&self.root.join("usr/bin/qemu-aarch64")),
        );
        let namespaces = ["--user", "--map-root-user", "--mount", "sh", "-c", ENTER, "sh"];
        let mut all: Vec<&str> = namespaces.to_vec();
        all.extend([&*root, &emulator, &folders]);
        all.extend(own.iter().map(String::as_str));
        all.extend(ENVIRONMENT);
        all.extend(environment.iter().map(String::as_str));
        all.push("cargo");
        all.extend(arguments);
        command::build(&self.checkout, "unshare", &all, &[])
    }
}

/// What `binfmt_misc` needs to start the emulator, which it opens at once (`F`): inside the root it has another path. Programs keep their
/// name (`P`).
fn registration(emulator: &Path) -> String {
    format!(":qemu-aarch64:M::{MAGIC}:{MASK}:{}:FP", emulator.display())
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(PathBuf::from(home).canonicalize()?);
    }
    let home = std::env::home_dir().context("no home folder")?.join(".cargo");
    home.canonicalize().with_context(|| format!("{} does not exist", home.display()))
}

/// The mirror of Debian that apt of this machine uses.
fn mirror_of_this_machine() -> Result<String> {
    let arguments = ["indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"];
    let output = Command::new("apt-get").args(arguments).output().context("could not start apt-get")?;
    let text = String::from_utf8(output.stdout)?;
    first_mirror(&text)
        .map(str::to_owned)
        .context("apt of this machine has no repository of Debian; pass one with `--mirror URL`")
}

/// The first repository that is named `debian`; those of updates and other distributions have other names or releases.
fn first_mirror(targets: &str) -> Option<&str> {
    targets
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(mirror, _)| mirror)
        .find(|mirror| mirror.trim_end_matches('/').rsplit('/').next() == Some("debian"))
}

/// Configuration of an apt that knows only its own folder, where nothing is installed.
fn apt_configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "Dir::Etc::sourcelist \"{folder}/sources.list\";\n\
         Dir::Etc::sourceparts \"-\";\n\
         Dir::State \"{folder}/state\";\n\
         Dir::State::status \"{folder}/status\";\n\
         Dir::Cache \"{folder}/cache\";\n\
         APT::Architecture \"amd64\";\n\
         APT::Architectures {{ \"amd64\"; \"arm64\"; }};\n\
         APT::Install-Recommends \"false\";\n\
         APT::Sandbox::User \"root\";\n\
         Acquire::Languages \"none\";\n"
    )
}

/// Packages must be signed by Debian.
fn sources(mirror: &str) -> String {
    format!("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {RELEASE} main\n")
}

/// Downloads the packages and their dependencies, and returns their folder.
fn download(folder: &Path, mirror: &str) -> Result<PathBuf> {
    files::create_empty(folder)?;
    for part in ["state/lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(folder.join(part))?;
    }
    let configuration = folder.join("apt.conf");
    fs::write(&configuration, apt_configuration(folder))?;
    fs::write(folder.join("sources.list"), sources(mirror))?;
    fs::write(folder.join("status"), "")?;
    let environment = [("APT_CONFIG", configuration.as_path())];
    command::run_with(folder, "apt-get", &["update", "--quiet"], &environment)?;
    let arguments = ["install", "--download-only", "--yes", "--quiet"];
    command::run_with(folder, "apt-get", &[&arguments[..], PACKAGES].concat(), &environment)?;
    Ok(folder.join("cache/archives"))
}

/// Archives of packages, `base-files` first: its links must exist before other packages write through them.
fn in_order<'a>(paths: impl Iterator<Item = &'a Path>) -> Vec<&'a Path> {
    let mut archives: Vec<&Path> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect();
    archives.sort_by_key(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        (!name.starts_with("base-files_"), name)
    });
    archives
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_is_a_repository_of_debian() {
        let targets = "http://example.org/debian-security/ bookworm-security\n\
                       http://example.org/other/ stable\n\
                       http://example.org/debian/ bookworm\n\
                       http://example.org/second/debian/ sid\n";
        assert_eq!(first_mirror(targets), Some("http://example.org/debian/"));
        assert_eq!(first_mirror("http://example.org/ubuntu noble\n"), None);
        assert_eq!(first_mirror(""), None);
    }

    #[test]
    fn apt_uses_only_its_own_folder() {
        let text = apt_configuration(Path::new("/a/b"));
        for line in text.lines().filter(|line| line.starts_with("Dir::") && !line.contains("sourceparts")) {
            assert!(line.contains("\"/a/b/"), "{line}");
        }
        assert!(text.contains("APT::Architectures { \"amd64\"; \"arm64\"; };"), "{text}");
        let line = sources("http://example.org/debian/");
        assert!(line.starts_with("deb [signed-by=") && line.ends_with("/debian/ sid main\n"), "{line}");
    }

    #[test]
    fn links_of_the_merged_usr_are_unpacked_first() {
        let paths = ["x/bash_5_amd64.deb", "x/base-files_14_amd64.deb", "x/lock", "x/a_1_arm64.deb"];
        let order = in_order(paths.iter().map(Path::new));
        let expected = ["x/base-files_14_amd64.deb", "x/a_1_arm64.deb", "x/bash_5_amd64.deb"];
        assert_eq!(order, expected.map(Path::new));
    }

    #[test]
    fn emulator_is_registered_for_programs_and_libraries_of_aarch64() {
        let bytes = |text: &str| -> Vec<u8> {
            let mut bytes = Vec::new();
            let mut rest = text;
            while !rest.is_empty() {
                match rest.strip_prefix(r"\x") {
                    Some(code) => {
                        bytes.push(u8::from_str_radix(&code[..2], 16).unwrap());
                        rest = &code[2..];
                    }
                    None => {
                        bytes.push(rest.as_bytes()[0]);
                        rest = &rest[1..];
                    }
                }
            }
            bytes
        };
        let (magic, mask) = (bytes(MAGIC), bytes(MASK));
        assert_eq!((magic.len(), mask.len()), (20, 20));
        let matches = |kind: u8, machine: u8| {
            let mut header = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0";
            (header[16], header[18]) = (kind, machine);
            header.iter().zip(&magic).zip(&mask).all(|((found, magic), mask)| found & mask == magic & mask)
        };
        // Executables with a fixed address and others; EM_AARCH64 and EM_X86_64.
        assert!(matches(2, 183) && matches(3, 183));
        assert!(!matches(2, 62) && !matches(3, 62) && !matches(1, 183));
        let text = registration(Path::new("/root/qemu-aarch64"));
        assert!(text.starts_with(r":qemu-aarch64:M::\x7fELF") && text.ends_with(":/root/qemu-aarch64:FP"));
    }
}
