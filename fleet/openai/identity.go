package openai

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/http"
)

// maxSession is how much of a conversation's name counts, in bytes. Longer ones are no
// names but content.
const maxSession = 255

// sessionHeaders name a conversation, the first that is there counts: what says so
// itself, and what coding tools and front ends send for it.
var sessionHeaders = []string{
	"X-Session-Id", "X-Session-Affinity",
	"X-Claude-Code-Session-Id", "Session-Id", "Session_id", "X-Opencode-Session", "X-Openwebui-Chat-Id",
	"X-Litellm-Session-Id", "X-Bf-Session-Id", "X-Olla-Session-Id", "X-Amp-Thread-Id", "X-Conversation-Id",
}

// session returns the key of the conversation: equal for requests that one caller
// makes with one name for one model, and telling nothing of the name. Empty: nothing
// names it, and only its content can tell.
func (j *Job) session() string {
	where, said := j.sessionName()
	if said == "" || len(said) > maxSession {
		return ""
	}
	h := sha256.New()
	h.Write(j.opts.BlockKey[:])
	var size [8]byte
	for _, s := range []string{j.opts.Caller, j.model, where, said} {
		binary.LittleEndian.PutUint64(size[:], uint64(len(s)))
		h.Write(size[:])
		h.Write([]byte(s))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// sessionName finds what names the conversation, and which kind of name that is: two
// fields may say the same and not mean it.
func (j *Job) sessionName() (where, said string) {
	if h := j.opts.SessionHeader; h != "" {
		if s := j.opts.Header.Get(h); s != "" {
			return "header", s
		}
	}
	for _, h := range sessionHeaders {
		if s := headerValue(j.opts.Header, h); s != "" {
			return h, s
		}
	}
	d := &j.doc
	for _, f := range []field{fieldPromptCacheKey, fieldConversation, fieldPreviousResponse} {
		if s := d.nameIn(f, "id"); s != "" {
			return fieldNames[f], s
		}
	}
	for _, key := range []string{"session_id", "user_id"} {
		if s := d.nameIn(fieldMetadata, key); s != "" {
			return key, s
		}
	}
	return fieldNames[fieldUser], d.nameIn(fieldUser, "")
}

// headerValue finds a header whose name may have an underscore, which net/http does
// not make canonical as clients write it.
func headerValue(h http.Header, key string) string {
	if v := h[key]; len(v) > 0 {
		return v[0]
	}
	return h.Get(key)
}

// nameIn returns a field that is a string, or the string that an object has under a
// key.
func (d *document) nameIn(f field, key string) (said string) {
	if !d.given(f) {
		return ""
	}
	v := d.value(f)
	if v[0] == '"' {
		if f == fieldMetadata {
			return ""
		}
		return string(textOf(v))
	}
	for name, at := range members(v, allOf(v)) {
		if string(name) == key && at.to-at.from <= 6*maxSession+2 {
			said = string(textOf(at.of(v)))
		}
	}
	return said
}
