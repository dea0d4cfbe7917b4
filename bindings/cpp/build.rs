//! Compiles the C++ side of the bridge into the library. Its source is checked in; nothing is generated here.

fn main() {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++20")
        .include("include")
        .include("plugin-include")
        .file("src/generated/bridge.cc")
        .file("src/generated/bridge_data.cc")
        .warnings(false)
        .compile("lz_cpp_bridge");
    println!("cargo::rerun-if-changed=src/generated/bridge.cc");
    println!("cargo::rerun-if-changed=src/generated/bridge_data.cc");
    println!("cargo::rerun-if-changed=plugin-include/layerzero/lz_plugin.h");
}
