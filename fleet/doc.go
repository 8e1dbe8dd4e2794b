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
//	    │       write              the client has it
//	    │       Job.Delivered
//	    │   the node fails: Job.Needs() says what another must be able to do; the
//	    │   lane is given back, one of such an instance is taken, and again
//	    ▼
//	Job.End                  the closing bytes; the lane is given back, once
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
// calls Manager.pump, which offers what is free to those that wait, in their order.
//
// A decision passes through pure parts: a [candidate] and the request make an outlook,
// an outlook has a cost in seconds, the least of which wins (cheapest; the other
// policies rank). What it is made of is learned: work counts what our requests have an
// instance do, estimate its speed, modelFigures the lengths of prompts and answers,
// endings what comes after a prompt's last block. The simulated fleet of the tests
// drives all of it through the Manager.
//
// # Locks
//
// Manager.applying is taken before Manager.mu, which guards everything else,
// nodes and instances included. Links, jobs, observers and loggers are called
// without a lock, Job and write from the goroutine of Session.Run only.
package fleet
