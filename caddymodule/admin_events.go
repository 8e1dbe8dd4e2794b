package caddymodule

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

const (
	// eventPing is how often a stream of events without any shows that it lives.
	eventPing = 15 * time.Second

	// eventWrite is how long a reader may take for one event.
	eventWrite = 10 * time.Second
)

// showEvents streams what happens to nodes and sessions, from now on. A reader that
// does not keep up is told so and dropped.
func (a *fleetAdmin) showEvents(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", "GET")
		return apiError(http.StatusMethodNotAllowed, "%s is not possible here: use GET", shown(r.Method))
	}
	s := currentState()
	if s == nil || s.apps.last() == nil {
		return errNoFleet
	}
	changes, cancel := s.manager.Changes()
	defer cancel()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // the server's own would end the stream after 10 s
	send := func(text []byte) error {
		_ = out.SetWriteDeadline(time.Now().Add(eventWrite))
		if _, err := w.Write(text); err != nil {
			return err
		}
		return out.Flush()
	}
	ping := time.NewTicker(eventPing)
	defer ping.Stop()
	err := send([]byte(pingText))
	for err == nil {
		select {
		case <-r.Context().Done():
			return nil
		case <-a.ended:
			return nil
		case <-ping.C:
			err = send([]byte(pingText))
		case c, ok := <-changes:
			if !ok {
				_ = send([]byte("event: dropped\ndata: {\"error\":\"this reader is too slow; what happened since is lost to it\"}\n\n"))
				return nil
			}
			data, failed := json.Marshal(c)
			if failed != nil {
				return nil
			}
			err = send(fmt.Appendf(nil, "event: %s\ndata: %s\n\n", c.Kind, data))
		}
	}
	return nil // nobody is there to be told
}
