package linkf

// lanes counts the generations that the node runs for its heads.
type lanes struct {
	most   int // of the node; 0: as many as its instances have
	used   int
	models map[string]*modelLanes
}

type modelLanes struct {
	limit int // 0: it is not offered
	used  int
}

// set takes the limits that the node's state says, and has it say no more than the node
// takes: a head would place what can only be declined.
func (l *lanes) set(m *status) {
	for name, x := range l.models {
		x.limit = 0
		if x.used == 0 {
			delete(l.models, name)
		}
	}
	for n := range m.Instances {
		i := &m.Instances[n]
		if l.most > 0 && int(i.Lanes) > l.most {
			i.Lanes = uint32(l.most)
		}
		x := l.models[i.Model]
		if x == nil {
			x = new(modelLanes)
			l.models[i.Model] = x
		}
		x.limit = max(1, int(i.Lanes))
	}
}

// take takes a lane; why says why there is none.
func (l *lanes) take(model string) (why string) {
	x := l.models[model]
	switch {
	case x == nil || x.limit == 0:
		return "the node does not offer the model"
	case x.used >= x.limit || l.most > 0 && l.used >= l.most:
		return "all lanes are taken"
	}
	x.used++
	l.used++
	return ""
}

// taken is how many of the lanes that are told of a model are taken, those included that
// what runs of other models leaves none for.
func (l *lanes) taken(model string, told int) (n int) {
	if x := l.models[model]; x != nil {
		n = x.used
	}
	if l.most > 0 {
		n = max(n, l.used-(l.most-told))
	}
	return n
}

func (l *lanes) give(model string) {
	x := l.models[model]
	x.used--
	l.used--
	if x.used == 0 && x.limit == 0 {
		delete(l.models, model)
	}
}
