// Package openai knows what a request of the OpenAI API, of Anthropic's and of
// llama-server's own asks, what its stream delivered, and how to ask another server
// for the rest. It speaks no HTTP: it takes bytes and gives bytes.
//
// [Paths] are all that is served. [ParseCall] reads a request that is answered whole
// and may be asked again. [Parse] makes a [Job] of one that generates. The Job is one
// state machine that implements [fleet.Job]:
//
//	body ── document (one scan) ──► Request ──► the body for an instance
//	event ── chunk (one scan) ────► Take ─────► what the client may have
//	                                  │
//	                             Delivered: text, figures, envelope count from here
//	                                  │
//	loss ── Needs ──► Request ──► the body for the rest, from what was delivered
//	end  ── End ────► finish, usage, [DONE]; or the error end
//
// Neither bodies nor chunks are decoded: a scan finds the bounds of what matters,
// and edits are made in place, so that all that is unknown passes byte for byte. A chunk
// that differs from the one before only in its text and figures is not scanned either
// (alike.go), and in the middle of a stream most go out as they came (steady.go).
//
// # Languages
//
// A kind says in which language a path speaks. Whatever the language, the scan of an
// event fills one chunk of parts (chunk.go for OpenAI's, native.go for llama-server's
// own, events.go with messages.go and responses.go for those whose events bear names):
// a part brings text or reasoning, a piece of a tool call, something that is opened or
// closed, or the finish. From there on there is one relay and one transcript. What
// differs again is how a chunk of a later node is made one of the answer that the
// client has, the request for the rest, and the whole answer.
//
// # Ways to go on
//
// A lost answer goes on in one of two ways. Mostly the next node is given what was
// delivered: as a message, as items, as blocks, as a longer prompt. Where no server can
// do that, it is asked the same again with the same seed, and what the client has is
// compared and swallowed (again, in record.go). Messages give back what they were given;
// that is swallowed in the same way. docs/resume.md is the whole list.
//
// # Whole answers
//
// The model server is always asked for a stream. A client that asked for a whole
// answer gets it assembled at the end, in the form llama-server gives; what was
// taken then counts as delivered at once, because going on from it is cheaper than
// starting again, although the client has nothing of it yet.
//
// # Placement
//
// [Job.Want] also says what placement goes by: the conversation's key (identity.go) and
// the hashes of the prompt's blocks (warm.go), neither of which tells what it is of.
package openai
