// Package fleet decides which model server answers a request, and what happens
// when that one fails.
//
// A [Manager] knows nodes. A node is reached by a [Link] and offers instances, one
// for each model; an instance has lanes, each of which runs one generation. A
// [Policy] says which nodes there are and how to choose among them.
//
// The way of a request:
//
//	Manager.Admit(Request)   waits for a lane; choosing the instance and taking the
//	    │                    lane is one step under one lock
//	    ▼
//	Session.Run(Job, write)
//	    │   Job.Request(Instance)  what to send to this instance, now
//	    │   Link.Run               sends it; for each event:
//	    │       Job.Take           what the client may have of it
//	    │       write              the client has it; of events that came together, once
//	    │       Job.Delivered
//	    │   the node fails: Job.Needs() says what another must be able to do; the
//	    │   lane is given back, one of such an instance is taken, and again
//	    ▼
//	Job.End                  the closing bytes; the lane is given back, once
//
// What is answered whole and may be asked again (embeddings, tokenize) goes the same
// way through Session.Call and Link.Call. A light request needs no lane.
//
// An attempt fails in one of two ways. A [*NodeLost] is the node's fault: it is
// marked down and probed until it answers, and the request moves. A
// [*RequestError] is not: it is the answer, unless another server may see it
// otherwise (declined, too long for this one).
//
// The package imports nothing else of this module and speaks neither HTTP nor
// JSON: what a Job writes and a Link carries is opaque to it.
//
// What the servers have in their caches is guessed from what they were given. The
// [warmIndex] maps the blocks of prompts to instances; placement asks it how much of a
// request each candidate holds, taking a lane notes the request there, and the answer
// tells how right that was. A goroutine of the manager's keeps it in a file.
//
// Requests that find no lane stand in the [queue]. Whoever changes what placement sees
// calls Manager.pump, which offers what is free to those that wait, in their order. Those
// that the same instances would do for are of one kind ([alike]), and it asks for one of
// them: what a pump costs grows with the kinds, not with those who wait.
//
// A decision looks at those of a [roster], who serve the request's model, and says how
// each fits; those that do are its candidates. It passes through pure parts: a [candidate]
// and the request make an outlook, an outlook has a cost in seconds, the least of which
// wins (cheapest; the other policies rank). What it is made of is learned: work counts
// what our requests have an instance do, estimate its speed, modelFigures the lengths of
// prompts and answers, endings what comes after a prompt's last block, loading.go how long
// a load takes. The simulated fleet of the tests drives all of it through the Manager.
//
// A node may offer more models than it can have loaded (a llama-server in router mode).
// One that is not loaded is a candidate, too: a request that is placed there loads it, and
// says which idle one goes for it, see places.go. What answers never goes.
//
// # Sessions
//
// From its admission to its end a request is listed under a random id. Operators, a
// drain and higher classes act on it by commands: Cancel ends it wherever it is; Park,
// Move and a drain end only the attempt, if the Job can go on exactly, and the goroutine
// of Run follows: it gives the lane back, waits or not, and goes on elsewhere. A command
// takes the session's gate, which Run holds while it hands an event on, so that it finds
// the Job between two events and none comes after it. A node that says it is about to
// stop is drained like one that an operator takes out.
//
// # Accounting
//
// A claim is one lane of one instance, or the place of a light request beside the lanes.
// The session owns it and gives it back once. An instance's held, sessions and light are
// the claims that are open there; a session has one, and in the moment of a move two. A
// drain owns the lane that it found for a session until that takes it; who has a server
// count a prompt, the place for that.
//
// # Health
//
// What requests and links show comes first. A node that failed is down and probed, with
// a wait that doubles, until it answers. One that is up and fails far more than others,
// or comes and goes, rests: it is used only if nobody else is there. One that shows
// itself idle while it should read a prompt of ours is asked whether it lives. A link
// that lost its connection is not a lost node until the policy's Relink is over. Whoever
// crashes two nodes is refused, and moves after losses are bounded for the whole fleet.
//
// # Locks
//
// They are taken in this order. Only the first two are held while something else is
// called: applying for what opens a link or gives it a connection, for the file of the
// index and for the logger; the gate for the job and for the client that it writes to.
// No link, job, observer or logger is called under the others:
//
//	Manager.applying   one Apply, Adopt or size of the index at a time
//	Session.gate       one event or command of a session at a time
//	Manager.mu         everything else, nodes, instances and sessions included
//	watchers.mu        who is told of changes
package fleet
