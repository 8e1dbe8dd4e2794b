// Package openai knows what a request of the OpenAI API asks, what its stream
// delivered, and how to ask another server for the rest. It speaks no HTTP: it
// takes bytes and gives bytes.
//
// [Parse] makes a [Job] of a path and a body. The Job is one state machine that
// implements [fleet.Job]:
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
// and edits are made in place, so that all that is unknown passes byte for byte.
//
// The model server is always asked for a stream. A client that asked for a whole
// answer gets it assembled at the end, in the form llama-server gives; what was
// taken then counts as delivered at once, because going on from it is cheaper than
// starting again, although the client has nothing of it yet.
package openai
