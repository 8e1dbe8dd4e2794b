// Package llamasim is a stand-in for one llama-server (v0.4.0): a fake to develop
// and test a fleet against, and to give demonstrations with. It speaks the real
// server's HTTP, down to the headers and to how its connections end, schedules
// slots the way the real one does and writes the same log, but its model is a
// hash function.
//
// The text it answers depends on every byte of the context, and on nothing else:
// no seed, no clock, not the server that happens to run it. Two servers continue
// the same context alike, so an answer cut off here and continued there is, put
// together, exactly the answer of one server that was left alone. One character
// lost, repeated or changed at the seam makes all text after it different. This
// is what makes the package useful: a test of a failover compares two strings.
//
// How a request passes through:
//
//	http.go       routes, headers, the key, errors of the HTTP layer
//	request.go    fields of the body, and which of two aliases counts
//	template.go   messages to prompt text, the final message to continue
//	tokens.go     prompt text to tokens; no token ever merges with a neighbour
//	slots.go      the queue, the choice of a slot, what each slot holds cached
//	generate.go   prefill in batches, then one token at a time at the set speed
//	model.go      the next piece of text, plan.go when a call or a schema decides it
//	split.go      generated text to reasoning, content and calls
//	chat.go, completions.go   events and bodies in the shape of each endpoint
//	sse.go        the event stream and its connection
//
// With tools in the request the answer is a call if tool_choice is "required" or
// names one, or, with "auto", if the last user message has the word "tool" in it.
//
// faults.go breaks things on command, log.go writes the server's log, and props.go
// answers what a fleet polls. Beside llama-server's routes there are POST /sim/fault
// with {"kind":"reset","token":5,"times":1}, POST /sim/kill and GET /sim/stats.
//
// Not imitated: the prompt cache in RAM, a shared KV pool, slots slowing each other
// down, speculative decoding, the Responses and Messages APIs, resumable streams,
// router mode and sleeping.
//
// Section numbers in comments (P24, 2.1) are those of the notes on llama-server's
// API that the captures in testdata go with.
package llamasim
