// Package llamacpp reaches one llama-server (of llama.cpp) over HTTP/1.1. Its
// [Link] is a [fleet.Link].
//
// [New] takes the address, the key and, where it can be read, the log of the
// server. A probe ([Link.Call] with [fleet.OpProbe]) asks what the server is: learn.go
// (model, lanes, context, fingerprint), features.go (what it can go on with, by having
// it render prompts) and, for a llama-server in router mode, router.go: one instance
// for each model, whether it is loaded or not. [Link.Watch] tells that, and from then on
// what the log shows that each instance carries; nothing is polled, a router tells of
// its models by itself. A sleeping server is never woken by a question, nor a model
// loaded: only paths known to leave them alone are asked until they are awake. Only a
// client's request ([Link.Run], or [fleet.OpAsk] for what is answered whole) wakes or
// loads.
//
// [Link.Run] posts one generation, without TLS on a connection of its own (direct.go),
// and hands on its events. The bytes of the stream go from the connection into an
// sseReader, which finds the events and copies nothing; run.go tells data, pings, progress
// and error events apart, and
// the scanner of timings.go picks the figures out of a payload without decoding
// it. All that goes wrong ends as one of two errors: a [fleet.NodeLost] for what
// the network and the engine do, a [fleet.RequestError] for what the server
// objects to. classify.go holds the table that tells them apart by the text of
// the answer, because the status alone does not: llama-server answers 500 to
// broken JSON and 400 to a prompt that fits another server.
//
// A [Seeder] (seed.go) reads the server's /slots once when its log says that this is
// worth it; a Link with a log runs one while it is watched. seed_router.go finds the
// children of a router, which are asked in its place. That nothing can be read there
// is a state which the log's source shows, and no error.
//
// Silence is bounded by a [fleet.Patience]. Its clock runs only while the link
// waits for the server. When it strikes, the server's /health is asked on a
// connection of its own: only a server that answers there gets the same time
// again. A ping is a sign of life, but not of work: a server that only pings, though
// there is a limit, is given up after ten times that limit and at least 2 minutes.
//
// Errors are logged and shown to operators, so they repeat nothing that a client, a
// model or whatever stands between may have written: of a text that is not known
// they tell the length.
//
// A generation whose caller leaves is given up as parting.go says: our half of the
// connection is closed, and what the server does not end at once counts as
// [fleet.Instance.Leaving] until it does.
//
// No header of a client reaches the server and none of the server's reaches
// anybody; redirects are not followed, proxies of the environment not used, and
// the key goes to the one address it was configured for.
package llamacpp
