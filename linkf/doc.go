// Package linkf is the link between a head and a node that runs our agent: one
// encrypted connection that carries any number of generations, survives its own loss,
// and can be dialled by either side. docs/linkf.md specifies it.
//
// The pure part takes bytes and times and returns bytes and actions:
//
//	socket bytes ─ handshake ─ secure ─ decoder ─ headMachine ─ headActions
//	               (preamble, Noise)    (frames)  agentMachine  agentActions
//	socket bytes ───────────── secure ───────────────── pull ◄─ wishes of the caller
//
// A [handshake] makes a connection a [secure] one, a [greeting] learns which node it is.
// A [headMachine] is the head's end of the link to one node, an [agentMachine] the node's
// end of its links to all heads. Both outlive connections: up and down tell them of one,
// receive gives its bytes, pull takes what should be sent now, tick and wake are their
// only clock. What they want done they say in actions.
//
// What they hold is by session. A [headSession] keeps the commands that the node is not
// known to have followed; an [agentSession] keeps the events that the head has not taken.
// After a reconnect the head lists its sessions, the node says which it has, and both go
// on from there: no command takes effect twice and no event is lost or repeated. Nothing
// is encoded before the connection can take it, so a queue is a list of sessions that
// have something to send, each once, and memory is bounded by their buffers.
//
// A node that reads its server's log tells the heads what each slot does ([Log]), apart
// from its status: slots change with every few tokens, what a node offers seldom.
//
// Around that are thin drivers, which have the sockets, goroutines and clocks. A [Head] is
// this process as its nodes see it: it dials nodes, or takes those that dial in, over TCP
// or from a web server, and a [Link] is the fleet's link to one of them. A
// [Node] runs the generations of its heads on one model server, and drains before it
// stops. Each has one mutex around its machine; pump moves the bytes of one connection
// with a reader and a writer, and neither holds the mutex while it reads, writes or
// encrypts. Who is not known yet holds one of a bounded number of handshakes, and has what
// goes wrong logged once in a while.
//
// The package imports fleet, whose words the messages use, and nothing else of this module.
package linkf
