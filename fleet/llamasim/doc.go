// Package llamasim is a stand-in for one llama-server (v0.4.0): a fake to develop
// and test a fleet against, and to give demonstrations with. It speaks the real
// server's HTTP, down to the headers and to how its connections end, schedules
// slots the way the real one does and writes the same log, but its model is a
// hash function.
//
// The text it answers depends on every byte of the context, and on nothing else:
// no seed, no clock, not the server that happens to run it, not the API that asks.
// Two servers continue the same context alike, so an answer cut off here and
// continued there is, put together, exactly the answer of one server that was left
// alone. One character lost, repeated or changed at the seam makes all text after
// it different. This is what makes the package useful: a test of a failover
// compares two strings.
//
// A [Server] is what a test holds; an instance is one life of it, from Start or
// Restart to Kill, Terminate or Close. How a request passes through an instance:
//
//	http.go       routes, headers, the key, errors of the HTTP layer
//	request.go    fields of the body, and which of two aliases counts
//	errors.go     what is answered when it goes wrong
//	chat.go       a conversation, whichever API asked: its body becomes that of a chat
//	template.go   messages to prompt text, the final message to continue
//	tokens.go     prompt text to tokens; no token ever merges with a neighbour
//	slots.go      the queue, the choice of a slot, what each slot holds cached
//	pool.go       what slots share: one context, prompts kept in memory
//	generate.go   prefill in batches, then one token at a time at the set speed
//	model.go      the next piece of text; plan.go and grammar.go when a call, a schema
//	              or a grammar decides it
//	split.go      generated text to reasoning, content and calls
//	openai.go, responses.go, messages.go   a conversation in the words of each API
//	completions.go, text.go, kinds.go      what is no conversation
//	sse.go        the event stream and its connection, and when a client that left is
//	              noticed; streams.go keeps streams for clients that come back
//
// With Options.Models an instance is a router: router.go starts an instance for each
// model that is asked for, with a port and a clock of its own, evicts and queues;
// routes.go passes requests on over loopback, as the real one does, and listing.go
// tells how the models are. sleep.go is loading and sleeping, version.go what older
// servers lack, log.go the log (a router and its children share one sink, so that
// their lines are in order), props.go what a fleet polls, faults.go what breaks on
// command, for one path or model if need be.
//
// With tools in the request the answer is a call if tool_choice is "required" or
// names one, or, with "auto", if the last user message has the word "tool" in it; with
// parallel_tool_calls it is two.
//
// Beside llama-server's routes there are POST /sim/fault with
// {"kind":"reset","token":5,"times":1}, POST /sim/kill and GET /sim/stats.
//
// Locks: Server.mu, then router.mu, then instance.mu, then the small ones of stats,
// faults, streams and the log.
//
// Not imitated: slots slowing each other down, speculative decoding, saving
// slots to files, several prompts of one request at once (they run one after another),
// downloads of models, LoRA adapters, and the logs of older versions.
//
// Section numbers in comments (P24, 2.1) are those of the notes on llama-server's
// API that the captures in testdata go with.
package llamasim
