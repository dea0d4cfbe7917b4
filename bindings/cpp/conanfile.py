"""Conan recipe of the C++ library. `conan create bindings/cpp` builds it with cargo from a checkout."""

import re
from pathlib import Path

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy

# What the build does not read, and what other builds wrote.
_EXCLUDED = (".git/*", ".venv/*", "*/__pycache__/*", "target/*", "dist/*", "*.so")


class LayerZero(ConanFile):
    name = "layerzero"
    license = "Apache-2.0"
    description = "Selects the kernel that runs an operation of machine-learning inference, and explains why"
    topics = ("inference", "kernels", "tensors")
    settings = "os", "arch", "compiler", "build_type"
    options = {"cargo_profile": ["release", "dev"]}
    default_options = {"cargo_profile": "release"}

    @property
    def _root(self):
        return Path(self.recipe_folder).parents[1]

    def set_version(self):
        self.version = re.search(r'^version = "(.*)"', (self._root / "Cargo.toml").read_text(), re.MULTILINE)[1]

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("layerzero supports Linux only")

    def export_sources(self):
        copy(self, "*", str(self._root), self.export_sources_folder, excludes=_EXCLUDED)

    def layout(self):
        self.folders.root = "../.."
        self.folders.subproject = "bindings/cpp"
        cmake_layout(self, build_folder="../../target/conan-build")

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.cache_variables["LAYERZERO_CARGO_PROFILE"] = str(self.options.cargo_profile)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # The package's own CMake files define its targets.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/layerzero"]
        self.cpp_info.libs = ["layerzero"]
