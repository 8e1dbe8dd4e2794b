package openai

import (
	"strconv"

	"github.com/slotfleet/slotfleet/fleet"
)

// pingInterval is how often, in seconds, a server is to say that it lives. Its own
// default of 30 finds a dead connection too late.
const pingInterval = 5

// writer makes the changes in a body. A field that the client gave is replaced
// where it stands; there is never a second one of its name.
type writer struct {
	doc   *document
	edits edits
	add   []byte // members that the client did not give
}

func (w *writer) set(f field, val []byte) {
	if m := w.doc.field[f]; m.ok() {
		w.edits.replace(m.val, val)
		return
	}
	if len(w.add) > 0 {
		w.add = append(w.add, ',')
	}
	w.add = append(append(append(w.add, '"'), fieldNames[f]...), `":`...)
	w.add = append(w.add, val...)
}

func (w *writer) drop(f field) {
	if m := w.doc.field[f]; m.ok() {
		w.edits.remove(m)
	}
}

// bytes returns the body with the changes; the client's stays as it is.
func (w *writer) bytes() []byte {
	size := len(w.doc.body) + len(w.add) + 1
	for _, d := range w.edits {
		size += len(d.with)
	}
	w.edits.insert(w.doc.open, w.doc.members, w.add)
	return w.edits.apply(make([]byte, 0, size), w.doc.body)
}

// Request returns what to send to the instance: the client's request, or, once
// something of the answer was delivered, the request for the rest. It begins a new
// attempt: what was taken and not delivered is forgotten.
func (j *Job) Request(i fleet.Instance) (fleet.Assignment, error) {
	r := &j.relay
	j.rollback()
	if err := j.settle(i); err != nil {
		return fleet.Assignment{}, err
	}
	r.begin(i)
	w := writer{doc: &j.doc}
	j.writeOwn(&w)
	if r.past.nodes > 0 {
		j.writeRest(&w)
	} else if j.wholeEchoes() {
		w.set(fieldEcho, []byte("true"))
	}
	return fleet.Assignment{Path: j.kind.path, Body: w.bytes()}, nil
}

// writeOwn sets what every attempt needs.
func (j *Job) writeOwn(w *writer) {
	if j.alias {
		w.set(fieldModel, appendString(nil, []byte(j.model)))
	}
	yes := []byte("true")
	w.set(fieldStream, yes)
	w.set(fieldReturnProgress, yes)
	if j.countsTokens() {
		w.set(fieldTimingsPerToken, yes)
	}
	if !j.streams {
		w.set(fieldStreamOptions, []byte(`{"include_usage":true}`))
	}
	w.drop(fieldIDSlot)
	if n, ok := j.doc.pingInterval(); !ok || n <= 0 || n > pingInterval {
		w.set(fieldPingInterval, strconv.AppendInt(nil, pingInterval, 10))
	}
}

// pingInterval returns the client's own.
func (d *document) pingInterval() (int64, bool) {
	if !d.given(fieldPingInterval) {
		return 0, false
	}
	return whole(d.value(fieldPingInterval))
}

// countsTokens reports whether the server is to tell its figures with every token:
// they cost bytes, and are needed where an answer can be gone on with and its
// count matters.
func (j *Job) countsTokens() bool {
	if j.blocked != "" || j.opts.Resume != ResumeOn {
		return false
	}
	_, limit := j.doc.budget()
	return limit != noField || j.usage || !j.streams
}

// wholeEchoes reports whether the answer must repeat what the client's last
// message says: llama-server does so in whole answers, also where it goes on with
// it explicitly and a stream would not.
func (j *Job) wholeEchoes() bool {
	return !j.streams && j.prefill.how != prefillNone && j.prefill.explicit
}
