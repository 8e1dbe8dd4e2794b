package openai

import (
	"math/rand/v2"
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
	j.rollback()
	w, err := j.way(i)
	if err != nil {
		return fleet.Assignment{}, err
	}
	j.relay.begin(i, w)
	if j.kind.api == apiAudio {
		a := j.form.request(j.kind.path, j)
		j.relay.asked = len(a.Body)
		return a, nil
	}
	b := writer{doc: &j.doc}
	j.writeOwn(&b, i)
	switch {
	case w == wayOn:
		j.writeRest(&b)
	case j.wholeEchoes():
		b.set(fieldEcho, yes)
	}
	body := b.bytes()
	j.relay.asked = len(body)
	return fleet.Assignment{Path: j.kind.path, Body: body}, nil
}

var yes, no = []byte("true"), []byte("false")

// writeOwn sets what every attempt needs. A path's server drops what it does not
// know, so that only what it reads is set.
func (j *Job) writeOwn(w *writer, i fleet.Instance) {
	j.nameFor(w, i)
	w.set(fieldStream, yes)
	w.drop(fieldIDSlot)
	if j.kind.api == apiMessages {
		return
	}
	w.set(fieldReturnProgress, yes)
	w.drop(fieldResponseFields) // it would cut away what ends the stream; see chosenFields
	if j.countsTokens() {
		w.set(fieldTimingsPerToken, yes)
	}
	switch j.kind.api {
	case apiChat:
		if !j.streams {
			w.set(fieldStreamOptions, []byte(`{"include_usage":true}`))
		}
	case apiCompletion:
		if !j.streams {
			w.set(fieldStreamOptions, []byte(`{"include_usage":true}`))
		}
		if j.keepsIDs() {
			w.set(fieldVerbose, yes)
		}
	}
	if j.seed != "" {
		w.set(fieldSeed, []byte(j.seed))
	}
	if n, ok := j.doc.pingInterval(); !ok || n <= 0 || n > pingInterval {
		w.set(fieldPingInterval, strconv.AppendInt(nil, pingInterval, 10))
	}
}

// nameFor sets the name by which the instance's server knows the model.
func (j *Job) nameFor(w *writer, i fleet.Instance) {
	switch {
	case i.Routed && !i.Serves(j.model): // the only model, whatever the client calls it
		w.set(fieldModel, appendString(nil, []byte(i.Model)))
	case j.alias:
		w.set(fieldModel, appendString(nil, []byte(j.model)))
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
// count matters, or its times, which llama-server's own completions always end with.
func (j *Job) countsTokens() bool {
	if j.repeats || j.opts.Resume != ResumeOn {
		return false
	}
	limit, _ := j.budget()
	return limit > 0 || j.usage || !j.streams || j.kind.api == apiResponses || j.kind.api == apiNative
}

// keepsIDs reports whether the ids of the tokens are kept, so that going on does not
// depend on how their text is cut into tokens again.
func (j *Job) keepsIDs() bool {
	return !j.repeats && j.opts.Resume == ResumeOn && (j.kind.api == apiCompletion || j.kind.api == apiNative)
}

// wholeEchoes reports whether the answer must repeat what the client's last
// message says: llama-server does so in whole answers, also where it goes on with
// it explicitly and a stream would not.
func (j *Job) wholeEchoes() bool {
	return !j.streams && j.kind.api == apiChat && j.prefill.how != prefillNone && j.prefill.explicit
}

// newSeed returns a seed that llama-server takes as it stands.
func newSeed() string { return strconv.FormatInt(int64(rand.Int32()), 10) }
