// A page for people: decisions, measurements, health and policy of an engine, in a browser on this machine.
#pragma once

#include <layerzero/engine.hpp>

#include <cstdint>
#include <string>
#include <utility>

namespace lz {

/// A running server. The destructor closes it.
class [[nodiscard]] Server {
  public:
    explicit Server(rust::Box<bridge::ServerHandle> server) : server_(std::move(server)) {}

    /// The URL of the page. It contains a random token: it is all that a reader needs. Empty after `close`.
    [[nodiscard]] std::string url() const { return std::string(bridge::server_url(*server_)); }
    /// Stops listening and ends all connections.
    void close() { bridge::server_close(*server_); }

  private:
    rust::Box<bridge::ServerHandle> server_;
};

/// Serves a page about an engine on a loopback address until the server is destroyed. Port 0 selects a free port.
inline Server serve(const Engine &engine, std::uint16_t port = 0) {
    rust::Box<bridge::ServerHandle> server = bridge::server_new();
    detail::check(bridge::server_start(*server, engine.raw(), port));
    return Server(std::move(server));
}

} // namespace lz
