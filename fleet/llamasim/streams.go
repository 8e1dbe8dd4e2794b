package llamasim

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Resumable streams (section 1.14): with X-Conversation-Id the bytes of an event
// stream are kept, the client that leaves no longer ends it, and one that comes back
// gets them from any byte on.

const (
	// keptSize is how many bytes of a stream stay, the last ones.
	keptSize = 4 << 20

	// keptFor is how long they stay after its end.
	keptFor = 300 * time.Second
)

// keptStreams are the streams of a server by conversation.
type keptStreams struct {
	mu sync.Mutex
	by map[string]*keptStream
}

// keptStream is one of them.
type keptStream struct {
	id      string
	started time.Time
	deleted chan struct{} // closed when it shall end

	mu      sync.Mutex
	bytes   []byte
	dropped int // how many came before bytes
	ended   time.Time
	gone    bool
	news    chan struct{} // closed, and made anew, when something changed
}

// begin starts a stream; the one before it in the same conversation is over.
func (k *keptStreams) begin(id string) *keptStream {
	s := &keptStream{id: id, started: time.Now(), deleted: make(chan struct{}), news: make(chan struct{})}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by == nil {
		k.by = map[string]*keptStream{}
	}
	for other, one := range k.by {
		if one.expired() {
			delete(k.by, other)
		}
	}
	if old := k.by[id]; old != nil {
		old.remove()
	}
	k.by[id] = s
	return s
}

// forget drops a stream, unless another took its place.
func (k *keptStreams) forget(s *keptStream) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by[s.id] == s {
		delete(k.by, s.id)
	}
}

func (k *keptStreams) find(id string) *keptStream {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.by[id]
	if s == nil || s.expired() {
		return nil
	}
	return s
}

// ids are those of all streams, sorted.
func (k *keptStreams) ids() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []string
	for id := range k.by {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

func (s *keptStream) expired() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.ended.IsZero() && time.Since(s.ended) > keptFor
}

// tell wakes those who read. The caller holds s.mu.
func (s *keptStream) tell() {
	close(s.news)
	s.news = make(chan struct{})
}

func (s *keptStream) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes = append(s.bytes, b...)
	if over := len(s.bytes) - keptSize; over > 0 {
		s.bytes = slices.Clone(s.bytes[over:])
		s.dropped += over
	}
	s.tell()
}

func (s *keptStream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.IsZero() {
		s.ended = time.Now()
		s.tell()
	}
}

// remove ends a stream and its generation.
func (s *keptStream) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone {
		s.gone = true
		close(s.deleted)
		s.tell()
	}
}

// read is what there is from a byte on, and a channel that tells of more; nil: there
// will be none. lost: the byte is no longer there.
func (s *keptStream) read(from int) (b []byte, more <-chan struct{}, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from < s.dropped {
		return nil, nil, true
	}
	if !s.gone && s.ended.IsZero() {
		more = s.news
	}
	return slices.Clone(s.bytes[min(from-s.dropped, len(s.bytes)):]), more, false
}

// serveStream replays a stream and follows it to its end.
func (in *instance) serveStream(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("conv_id")
	if id == "" {
		writeError(w, badRequest("Missing conversation id in path"))
		return
	}
	s := in.streams.find(id)
	if s == nil {
		writeError(w, errNotFound)
		return
	}
	from := 0
	if text := r.URL.Query().Get("from"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			writeError(w, badRequest("Invalid 'from' offset"))
			return
		}
		from = n
	}
	b, more, lost := s.read(from)
	if lost {
		writeError(w, badRequest("Stream offset lost, please restart"))
		return
	}
	rp := in.newReply(w, withoutConversation(r), &request{stream: true})
	defer rp.close()
	if rp.open() != nil {
		return
	}
	for {
		if len(b) > 0 {
			if rp.chunk(b) != nil {
				return
			}
			from += len(b)
		} else if more == nil {
			rp.end()
			return
		}
		if len(b) == 0 {
			select {
			case <-more:
			case <-rp.ctx.Done():
				return
			case <-in.term:
				return
			}
		}
		if b, more, lost = s.read(from); lost {
			return // the reader was too slow: the real server just ends, too
		}
	}
}

// withoutConversation keeps a replay from being kept itself.
func withoutConversation(r *http.Request) *http.Request {
	clone := r.Clone(r.Context())
	clone.Header.Del("X-Conversation-Id")
	return clone
}

func (in *instance) serveLookup(w http.ResponseWriter, _ *http.Request, body []byte) error {
	found, wrong := in.lookup(body)
	if wrong != nil {
		return wrong
	}
	writeJSON(w, http.StatusOK, found)
	return nil
}

// lookup is the status of those streams in a request that there are.
func (in *instance) lookup(body []byte) ([]fieldList, *apiError) {
	var want struct {
		IDs []string `json:"conversation_ids"`
	}
	if err := json.Unmarshal(body, &want); err != nil {
		return nil, badRequest("invalid body: " + err.Error())
	}
	found := []fieldList{}
	for _, id := range want.IDs {
		for _, known := range in.streams.ids() {
			if known != id && !strings.HasPrefix(known, id+"::") {
				continue
			}
			if s := in.streams.find(known); s != nil {
				found = append(found, s.status())
			}
		}
	}
	return found, nil
}

func (s *keptStream) status() fieldList {
	s.mu.Lock()
	defer s.mu.Unlock()
	completed := int64(0)
	if !s.ended.IsZero() {
		completed = s.ended.Unix()
	}
	return fieldList{
		{"conversation_id", s.id},
		{"is_done", !s.ended.IsZero()},
		{"total_bytes", s.dropped + len(s.bytes)},
		{"started_at", s.started.Unix()},
		{"completed_at", completed},
	}
}

// serveStreamStop ends a stream for good. It is no error if there is none.
func (in *instance) serveStreamStop(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("conv_id")
	if id == "" {
		writeError(w, badRequest("Missing conversation id in path"))
		return
	}
	if s := in.streams.find(id); s != nil {
		in.streams.forget(s)
		s.remove()
	} else {
		ids := in.streams.ids()
		in.log.write('W', "srv  evict_and_ca: stop on unknown stream session, conv_id=%s matched nothing, %d live: [%s]",
			id, len(ids), strings.Join(ids, ", "))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNoContent)
}
