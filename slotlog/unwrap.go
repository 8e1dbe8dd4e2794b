package slotlog

import "bytes"

// wrapping is what was taken off a line already.
type wrapping struct {
	depth  int
	mark   int   // the port of a router's child, 0 for none
	clock  int64 // microseconds since the process began
	shape  shape // what its prefix showed
	inside bool  // a further line of a record: no frame begins here
	noise  bool  // a wrapper's own line, unless a server's is inside
	named  bool  // a container's name was taken off
}

// shape is what a server's line has before its words.
type shape uint8

const (
	shapeBare   shape = iota
	shapeLevel        // `I ` (--log-prefix)
	shapeClock        // `0.12.345.678 I `
	shapeRecord       // a record of --log-jsonl
)

// open takes carriers, marks and prefixes off a line until a server's words are
// left, and reports whether they are known.
func (r *Reader) open(b []byte, w wrapping) bool {
	if len(b) > 0 && (b[len(b)-1] == '\r' || b[0] < ' ' || b[0] >= 0x80) {
		b = trimLine(b)
	}
	var h head
	h.scan(b)
	if len(h.body) > 0 && h.body[0] == esc || len(b) > 0 && b[0] == esc {
		r.texts[w.depth] = stripANSI(r.texts[w.depth][:0], b)
		b = trimLine(r.texts[w.depth])
		h.scan(b)
	}
	if h.port != 0 && w.mark == 0 {
		w.mark, w.clock = h.port, 0 // the clock so far was the router's
	}
	if h.clocked {
		w.clock, w.shape = h.clock, max(w.shape, shapeClock)
	} else if h.leveled {
		w.shape = max(w.shape, shapeLevel)
	}
	body := h.body
	if len(body) == 0 {
		return true
	}
	if h.clocked || body[0] == 's' && hasPrefix(body, "slot ") || body[0] == 's' && hasPrefix(body, "srv ") {
		return r.native(body, w)
	}
	if w.depth < maxNesting && !w.inside {
		w.depth++
		if body[0] == '{' {
			return r.object(body, w)
		}
		if body[0] == ' ' || body[0] == '\t' {
			return r.open(bytes.TrimLeft(body, " \t\r"), w)
		} else if h.port == 0 {
			if o := openCarrier(body); o.n > 0 {
				return r.carried(body[o.n:], o, w)
			}
		}
		w.depth--
	}
	return r.native(body, w)
}

// carried goes on behind a carrier.
func (r *Reader) carried(b []byte, o opened, w wrapping) (known bool) {
	w.noise = w.noise || o.noise
	if o.name != nil && !w.named {
		w.named = true
		outer := r.era
		r.era = r.container(o.name)
		known = r.open(b, w)
		r.era, r.naming = outer, r.naming[:0]
		return known
	}
	if o.part == 0 {
		return r.open(b, w)
	}
	return r.join(b, o.err, o.part == 'F', w)
}

// join puts together the parts of a line that a collector cut, each stream's for
// itself, and goes on with the whole.
func (r *Reader) join(b []byte, err, whole bool, w wrapping) bool {
	held := &r.joined[0]
	if err {
		held = &r.joined[1]
	}
	if len(*held) == 0 && whole {
		return r.open(b, w)
	}
	*held = append(*held, b[:min(len(b), r.maxLine-len(*held))]...)
	if !whole {
		return true
	}
	b = *held
	*held = (*held)[:0]
	return r.open(b, w)
}

// object looks into a JSON object: a collector's entry, a record of --log-jsonl, or
// one of a build of 2024.
func (r *Reader) object(b []byte, w wrapping) bool {
	var text, kind, function, stream jsonValue
	var clock int64
	name := ""
	f, ok := objectFields(b)
	if !ok {
		return false
	}
	for {
		key, v, ok := f.next()
		if !ok {
			break
		}
		switch string(key) {
		case "log":
			text, name = v, "log"
		case "MESSAGE", "msg", "message":
			if name == "" {
				text, name = v, "msg"
			}
		case "type":
			kind = v
		case "function":
			function = v
		case "stream":
			stream = v
		case "time":
			if clock = whole64(v.text); clock < 0 || v.isText {
				clock = 0
			}
		}
	}
	switch {
	case function.isText && name == "msg":
		return r.objectRecord(b, w)
	case kind.isText && string(kind.text) != "log":
		return true // other records of --log-jsonl hold no words
	case text.isText:
		r.texts[w.depth] = text.appendText(r.texts[w.depth][:0])
	case text.text == nil:
		return false
	default:
		r.texts[w.depth] = text.appendBytes(r.texts[w.depth][:0])
	}
	words := r.texts[w.depth]
	if kind.isText {
		w.clock, w.shape = clock, shapeRecord
		return r.recordLines(words, w)
	}
	if name == "log" && stream.isText {
		line, whole := bytes.CutSuffix(words, []byte("\n"))
		return r.join(line, string(stream.text) == "stderr", whole, w)
	}
	return r.recordLines(words, w)
}

// recordLines goes on with the text of one record. Only its first line can be about
// a slot: what follows may be text of a request.
func (r *Reader) recordLines(b []byte, w wrapping) bool {
	known := true
	for len(b) > 0 {
		line, rest, _ := bytes.Cut(b, []byte("\n"))
		b = rest
		known = r.open(line, w) && known
		w.inside = true
	}
	return known
}

// objectRecord reads a record of 2023 or 2024.
func (r *Reader) objectRecord(b []byte, w wrapping) bool {
	r.rec.clear()
	f, _ := objectFields(b)
	for {
		key, v, ok := f.next()
		if !ok {
			break
		}
		r.rec.set(key, v.text)
	}
	p := r.process(w.mark)
	if !r.believe(p, w, false) {
		return false
	}
	r.recordLine(p)
	return true
}

// startsNative reports whether a server's own line begins here, after blanks.
func startsNative(b []byte) bool {
	b = b[skipBlanks(b, 0):]
	var h head
	h.scan(b)
	if h.port != 0 || h.clocked {
		return true
	}
	if _, _, ok := scanFrame(h.body); ok {
		return true
	}
	if _, ok := scanService(h.body); ok {
		return true
	}
	return hasPrefix(b, "{") || hasPrefix(h.body, "main: ") || hasPrefix(b, "INFO [") || hasPrefix(b, "WARN [") || hasPrefix(b, "VERB [") || hasPrefix(b, "ERR [")
}
