package slotlog

// maxContainers bounds of how many containers in one log the lines are kept apart; those
// of all further ones go together.
const maxContainers = 64

// container finds the era of the lines behind a name's column. Lines without a name and
// those of the first container of which a server's line was believed share one. A column
// is text of a server where one has spoken without a name, and inside a container's line.
func (r *Reader) container(name []byte) *era {
	first := r.eras[0]
	if first.name == "" {
		if !first.spoke {
			r.naming = append(r.naming[:0], name...)
		}
		return first
	}
	for _, e := range r.eras {
		if e.name == string(name) {
			return e
		}
	}
	if len(r.eras) == maxContainers {
		return r.eras[maxContainers-1]
	}
	e := newEra(string(name), r.fixedPort)
	r.eras = append(r.eras, e)
	return e
}

// speak gives a process its port when it is first believed. A server in each container may
// have the same one; all but the first then get 65536 added, or a multiple of it.
func (r *Reader) speak(p *process) {
	p.spoke = true
	if !r.spoke {
		if r.spoke = true; r.name == "" {
			r.name = string(r.naming)
		}
	}
	p.port = r.apart(p.own)
}

// apart is a port that no server of another container has.
func (r *Reader) apart(port int) int {
	for _, e := range r.eras {
		if e == r.era {
			continue
		}
		for _, p := range e.procs {
			if p.spoke && p.port == port {
				return r.apart(port + 1<<16)
			}
		}
	}
	return port
}
