// Package slotfleet is a module for Caddy. It gives a fleet of llama.cpp servers
// one OpenAI endpoint: each request goes to the server that will answer it
// soonest, a stream goes on when its server dies, and what the servers' slots do
// is read from their logs.
//
// The package itself is empty. It is what one names to build Caddy with the
// module:
//
//	xcaddy build --with github.com/slotfleet/slotfleet
//
// The parts, none of which but caddymodule knows Caddy:
//
//   - [github.com/slotfleet/slotfleet/caddymodule]: apps, handler, Caddyfile,
//     admin routes, metrics and commands
//   - [github.com/slotfleet/slotfleet/fleet]: which server answers, and what
//     happens when it fails
//   - [github.com/slotfleet/slotfleet/fleet/openai]: what a request asks, what a
//     stream delivered, how to ask for the rest
//   - [github.com/slotfleet/slotfleet/fleet/llamacpp]: a node that is a
//     llama-server
//   - [github.com/slotfleet/slotfleet/fleet/llamasim]: a stand-in for one
//   - [github.com/slotfleet/slotfleet/slotlog]: what a llama-server's log says
package slotfleet

import _ "github.com/slotfleet/slotfleet/caddymodule" // registers the modules
