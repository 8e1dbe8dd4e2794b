package linkf

import "time"

// The times of the protocol, as docs/linkf.md has them.
const (
	// A side that has sent nothing for a heartbeat sends a keepalive; one that got
	// nothing for three gives the connection up. The shorter one is for links with a
	// session.
	heartbeatBusy = time.Second
	heartbeatIdle = 5 * time.Second
	heartbeats    = 3

	// A head's keepalive goes up to one part in so many of a heartbeat early, together
	// with those of other links.
	beatsTogether = 5

	// A node that sent nothing for so long answers a keepalive with its own, which is
	// then not due soon after: both sides wake up once, not twice.
	answerAfter = heartbeatBusy / 2

	// greetLimit bounds the time until a peer has shown who it is, and at a node anew
	// from the end of the handshake to hello.
	greetLimit = 5 * time.Second

	// statusGap is the least time between two states of a node that follow each other.
	statusGap = 20 * time.Millisecond
)

// DefaultLease is how long a session lives without a grant, where the head does not say
// otherwise. The node asks for one when a third of it is over.
const DefaultLease = 30 * time.Second

// MaxLease is the longest that a node takes.
const MaxLease = 10 * time.Minute

// Silence is how long a head with a session on a node waits for a sign of life of it
// before the link counts as lost. A lease is longer.
const Silence = heartbeats * heartbeatBusy

// The bounds of what is held for a peer.
const (
	maxInline    = 64 << 10  // bytes of a body inside a message
	chunkLen     = 64 << 10  // of a transfer
	window       = 8         // chunks that may be on the way
	maxTransfer  = 256 << 20 // bytes of one transfer, and of all that are not taken yet
	maxTransfers = 256       // that are open at once

	maxSessions = 4096 // of one head on one node
	maxCalls    = 4096 // of one head on one node that are not answered

	maxPiece    = 32 << 10  // bytes of one event's data
	eventCost   = 64        // what an event counts beside its data
	creditRoom  = 256 << 10 // cost of events that a head has not taken
	retryRoom   = 1 << 20   // cost of events that one generation keeps
	retryTotal  = 64 << 20  // and all of a node
	maxAssembly = 16 << 20  // bytes of an event that came in pieces
)

// renewAgain is how long an unanswered request for a grant stands.
const renewAgain = heartbeatBusy
