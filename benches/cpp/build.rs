//! Compiles the C++ half of the benchmark.

fn main() {
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .include("../../bindings/cpp/include")
        .include("../../runtime/plugin/include")
        .file("src/calls.cpp")
        .compile("bench_cpp_calls");
    println!("cargo::rerun-if-changed=src/calls.cpp");
    println!("cargo::rerun-if-changed=../../bindings/cpp/include");
}
