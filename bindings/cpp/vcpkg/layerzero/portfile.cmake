# An overlay port: it builds the checkout that it lies in, with cargo.
#
#     vcpkg install layerzero --overlay-ports=bindings/cpp/vcpkg
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)

# One build serves release and debug programs: it is compiled by cargo, and the C++ headers only call it.
set(VCPKG_BUILD_TYPE release)
set(VCPKG_POLICY_MISMATCHED_NUMBER_OF_BINARIES enabled)

if(DEFINED ENV{CARGO_TARGET_DIR})
    set(cargo_target "$ENV{CARGO_TARGET_DIR}")
else()
    set(cargo_target "${CURRENT_BUILDTREES_DIR}/cargo")
endif()

vcpkg_cmake_configure(
    SOURCE_PATH "${SOURCE_PATH}/bindings/cpp"
    OPTIONS "-DLAYERZERO_CARGO_TARGET=${cargo_target}"
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH "lib/cmake/${PORT}")
vcpkg_fixup_pkgconfig()

# Programs of a port belong into its tools.
vcpkg_copy_tools(TOOL_NAMES lz-worker AUTO_CLEAN)
vcpkg_replace_string("${CURRENT_PACKAGES_DIR}/share/${PORT}/layerzeroConfig.cmake"
    "/bin/lz-worker" "/tools/${PORT}/lz-worker")

file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE" "${SOURCE_PATH}/THIRD_PARTY_NOTICES.md")
