// Package caddymodule is what Caddy has to know of Slotfleet, and nothing else: the
// rest of the module does not import Caddy.
//
// [FleetApp] (`fleet`) says which llama.cpp servers there are, [SlotlogApp]
// (`slotlog`) which logs to read, and [Handler] (`http.handlers.fleet`) answers
// the OpenAI API with them. Two admin routers show the state.
//
// Caddy replaces a configuration by a new one while requests of the old one run.
// What is wanted (nodes, limits, names) therefore belongs to a configuration, and
// what is known (the [fleet.Manager], log readers, counters) lives in usage pools
// that both share:
//
//	          Provision          Start           Stop          Cleanup
//	app       holds the state    applies its     withdraws     leaves
//	                             policy          it
//	request              leases the app ............... leaves
//
// Provision reads and checks and starts nothing, for `caddy validate` calls it too.
// An app and each request that came to it hold it together; only when the last of
// them has left is the policy released and the shared state given back. That is
// why an answer survives any reload, even one that removes the app.
//
// A log is followed once for the process (tail.go), whatever sources and nodes name
// it; log_source.go checks where it comes from. What a started configuration does in
// the background ends with its Stop: saying which logs cannot be relied on, and asking
// servers for what their logs do not tell.
//
// Nodes may be agents. linkf.go makes the links to those that are dialled; those that dial
// in come through a door (joins.go) that stays open from configuration to configuration,
// or through a site with [JoinHandler] (`fleet_join`), to one head for the process.
// [NodeApp] (`fleet_node`) is the agent: it, too, is in a usage pool, under all that its
// configuration says, so that a reload ends it only if that changed.
//
// A file of keys (keys.go) is read once for the process, too (keys_file.go), with what
// each key has used up (keys_usage.go): keys_handler.go asks it who a request is from before
// the body is read, [FleetKeys] for routes of others.
//
// A request passes through serve.go: routes.go says whose it is, body.go reads it into
// memory that buffer.go sets aside, fleet/openai makes a job or a call of it,
// client_job.go bounds what the job holds, the manager runs that, respond.go writes what
// comes out and ping.go a sign of life where nothing does, headers.go and account.go tell
// the client, metrics and access log about it. models.go answers from memory, props.go
// asks one node and shows a part.
package caddymodule
