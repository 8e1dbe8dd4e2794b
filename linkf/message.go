package linkf

// Version is the version of the messages. The preamble's is another one.
const Version = 1

// The messages. Payloads are CBOR maps with integer keys; a key that is not known is
// ignored, one that is missing is zero. Times are milliseconds.

// hello opens the head's side of a connection.
type hello struct {
	From     uint16 `cbor:"1,keyasint"` // the versions that it speaks
	To       uint16 `cbor:"2,keyasint"`
	Instance []byte `cbor:"3,keyasint"` // 16 random bytes of this run of the head
	Identity string `cbor:"4,keyasint"` // its name, the same over restarts
	Limits   limits `cbor:"5,keyasint"`
	Features uint64 `cbor:"6,keyasint,omitempty"` // none are defined
}

// helloAck is the node's answer.
type helloAck struct {
	Version  uint16 `cbor:"1,keyasint"`
	Instance []byte `cbor:"2,keyasint"` // 16 random bytes of this run of the node
	Identity string `cbor:"3,keyasint"`
	Limits   limits `cbor:"4,keyasint"`
	Features uint64 `cbor:"5,keyasint,omitempty"` // none are defined
}

// limits are what a side takes from its peer.
type limits struct {
	Transfer uint64 `cbor:"1,keyasint"`           // bytes of one transfer
	Sessions uint32 `cbor:"2,keyasint,omitempty"` // sessions of one head
}

// key names a session at an epoch; every message about one begins with it.
type key struct {
	Session uint64 `cbor:"1,keyasint"`
	Epoch   uint64 `cbor:"2,keyasint"`
}

type assign struct {
	key
	Command uint64 `cbor:"3,keyasint"`
	Lease   uint32 `cbor:"4,keyasint"` // how long the session lives without a grant
	Renew   uint32 `cbor:"5,keyasint"` // from when on a grant should be asked for
	Model   string `cbor:"6,keyasint"`
	Unload  string `cbor:"7,keyasint,omitempty"` // a model that has to go first
}

type appendContent struct {
	key
	Command     uint64 `cbor:"3,keyasint"`
	Path        string `cbor:"4,keyasint"`
	ContentType string `cbor:"5,keyasint,omitempty"`
	Body        []byte `cbor:"6,keyasint,omitempty"`
	Transfer    uint64 `cbor:"7,keyasint,omitempty"` // the body came as this transfer
}

type generate struct {
	key
	Command    uint64 `cbor:"3,keyasint"`
	Generation uint64 `cbor:"4,keyasint"`
	First      uint32 `cbor:"5,keyasint,omitempty"` // limit of silence until the first data
	Stall      uint32 `cbor:"6,keyasint,omitempty"` // and from then on
	Credit     uint64 `cbor:"7,keyasint"`           // cost of events that may be sent
}

// command is cancel, park and revoke.
type command struct {
	key
	Command uint64 `cbor:"3,keyasint"`
}

type grant struct {
	key
	Lease uint32 `cbor:"3,keyasint"`
	Renew uint32 `cbor:"4,keyasint"`
}

// gone says that the node does not hold a session, or not any more.
type gone struct {
	key
	Reason  goneReason `cbor:"3,keyasint"`
	Message string     `cbor:"4,keyasint,omitempty"`
}

type goneReason uint8

const (
	goneUnknown  goneReason = iota + 1 // the node never heard of it, or forgot it
	goneFenced                         // a newer epoch has its place
	goneExpired                        // its lease ended
	goneDeclined                       // the node has no lane or room for it
	goneLoading                        // the node does not know yet what its server offers
)

// events are events of one generation, numbered First and up.
type events struct {
	key
	Generation uint64  `cbor:"3,keyasint"`
	First      uint64  `cbor:"4,keyasint"`
	Items      []event `cbor:"5,keyasint"`
}

type event struct {
	Kind     uint8     `cbor:"1,keyasint"`
	Data     []byte    `cbor:"2,keyasint,omitempty"`
	More     bool      `cbor:"3,keyasint,omitempty"` // Data goes on in the next event
	Progress *progress `cbor:"4,keyasint,omitempty"`
	Timings  *timings  `cbor:"5,keyasint,omitempty"`
	Outcome  *outcome  `cbor:"6,keyasint,omitempty"` // with eventEnd
}

// The kinds of events: fleet's, and the end.
const (
	eventOpen  uint8 = 1
	eventData  uint8 = 2
	eventAlive uint8 = 3
	eventEnd   uint8 = 4
)

type progress struct {
	Total     int64 `cbor:"1,keyasint"`
	Cached    int64 `cbor:"2,keyasint,omitempty"`
	Processed int64 `cbor:"3,keyasint,omitempty"`
}

type timings struct {
	Cached             int64   `cbor:"1,keyasint,omitempty"`
	Prompt             int64   `cbor:"2,keyasint,omitempty"`
	Predicted          int64   `cbor:"3,keyasint,omitempty"`
	PromptPerSecond    float64 `cbor:"4,keyasint,omitempty"`
	PredictedPerSecond float64 `cbor:"5,keyasint,omitempty"`
}

// outcome is how a generation or a call ended.
type outcome struct {
	Kind       uint8  `cbor:"1,keyasint"`           // outcomeDone and the following
	Why        string `cbor:"2,keyasint,omitempty"` // cause or reason, in fleet's words
	Message    string `cbor:"3,keyasint,omitempty"` // for the client
	Detail     string `cbor:"4,keyasint,omitempty"` // for the operator
	Len        int64  `cbor:"5,keyasint,omitempty"`
	Max        int64  `cbor:"6,keyasint,omitempty"`
	RetryAfter uint32 `cbor:"7,keyasint,omitempty"`
	Again      bool   `cbor:"8,keyasint,omitempty"`
	Answer     *reply `cbor:"9,keyasint,omitempty"` // the model server's own
}

const (
	outcomeDone    uint8 = iota // the server ended its answer
	outcomeLost                 // the node's fault
	outcomeRefused              // the request's
)

type ack struct {
	key
	Generation uint64 `cbor:"3,keyasint"`
	Next       uint64 `cbor:"4,keyasint"` // all below were taken
}

type credit struct {
	key
	Generation uint64 `cbor:"3,keyasint"`
	Limit      uint64 `cbor:"4,keyasint"` // of the cost of all events since the first
}

// reconcile lists all that the head holds on the node.
type reconcile struct {
	Sessions []wanted `cbor:"1,keyasint"`
}

type wanted struct {
	key
	Generation uint64 `cbor:"3,keyasint,omitempty"`
	Next       uint64 `cbor:"4,keyasint,omitempty"` // the event that it waits for
}

type reconcileAck struct {
	Sessions []holding `cbor:"1,keyasint"`
}

type holding struct {
	key
	Held    bool   `cbor:"3,keyasint,omitempty"`
	Command uint64 `cbor:"4,keyasint,omitempty"` // the last that took effect
}

type status struct {
	Instances []instance `cbor:"1,keyasint,omitempty"`
	Places    uint32     `cbor:"2,keyasint,omitempty"`
	Loads     bool       `cbor:"3,keyasint,omitempty"`
	Down      *outcome   `cbor:"4,keyasint,omitempty"`
	Leaving   bool       `cbor:"5,keyasint,omitempty"` // it takes nothing new, for it is about to stop
	Watch     uint32     `cbor:"6,keyasint,omitempty"` // how often it looks whether its server answers
}

type instance struct {
	Model       string   `cbor:"1,keyasint"`
	Aliases     []string `cbor:"2,keyasint,omitempty"`
	State       string   `cbor:"3,keyasint"`
	Lanes       uint32   `cbor:"4,keyasint,omitempty"`
	Context     int64    `cbor:"5,keyasint,omitempty"`
	KVUnified   bool     `cbor:"6,keyasint,omitempty"`
	Fingerprint string   `cbor:"7,keyasint,omitempty"`
	Features    []string `cbor:"8,keyasint,omitempty"`
	Leaving     uint32   `cbor:"9,keyasint,omitempty"`
	Routed      bool     `cbor:"10,keyasint,omitempty"`
	Port        uint32   `cbor:"11,keyasint,omitempty"`
	Active      uint32   `cbor:"12,keyasint,omitempty"`
	Queued      uint32   `cbor:"13,keyasint,omitempty"`
	Ours        uint32   `cbor:"14,keyasint,omitempty"` // of the head that is told
	KVUsed      int64    `cbor:"15,keyasint,omitempty"`
	KVTotal     int64    `cbor:"16,keyasint,omitempty"`
	Age         *uint32  `cbor:"17,keyasint,omitempty"` // of the load; missing: unknown
	Prefill     float64  `cbor:"18,keyasint,omitempty"`
	Decode      float64  `cbor:"19,keyasint,omitempty"`
}

type call struct {
	ID          uint64 `cbor:"1,keyasint"`
	Op          uint8  `cbor:"2,keyasint"`
	Method      string `cbor:"3,keyasint,omitempty"`
	Path        string `cbor:"4,keyasint,omitempty"`
	ContentType string `cbor:"5,keyasint,omitempty"`
	Model       string `cbor:"6,keyasint,omitempty"`
	Unload      string `cbor:"7,keyasint,omitempty"`
	First       uint32 `cbor:"8,keyasint,omitempty"`
	Stall       uint32 `cbor:"9,keyasint,omitempty"`
	Body        []byte `cbor:"10,keyasint,omitempty"`
	Transfer    uint64 `cbor:"11,keyasint,omitempty"`
}

// callID is what cancels a call.
type callID struct {
	ID uint64 `cbor:"1,keyasint"`
}

// reply answers a call.
type reply struct {
	ID          uint64   `cbor:"1,keyasint,omitempty"`
	Status      int      `cbor:"2,keyasint,omitempty"`
	ContentType string   `cbor:"3,keyasint,omitempty"`
	Body        []byte   `cbor:"4,keyasint,omitempty"`
	Transfer    uint64   `cbor:"5,keyasint,omitempty"`
	Outcome     *outcome `cbor:"6,keyasint,omitempty"` // it failed
}

// transfer is begin (Size), chunk (Offset, Data), end, abort (Reason) and ack (Offset).
type transfer struct {
	ID     uint64 `cbor:"1,keyasint"`
	Size   uint64 `cbor:"2,keyasint,omitempty"`
	Offset uint64 `cbor:"3,keyasint,omitempty"`
	Data   []byte `cbor:"4,keyasint,omitempty"`
	Reason string `cbor:"5,keyasint,omitempty"`
}

type closing struct {
	Reason  string `cbor:"1,keyasint"`
	Leaving bool   `cbor:"2,keyasint,omitempty"` // the sender is stopping: what runs there is over
	Refusal uint8  `cbor:"3,keyasint,omitempty"` // of a node that is not taken; 0: another reason
}

// notice is a word to the operator of the node.
type notice struct {
	Text string `cbor:"1,keyasint"`
}

// empty is the message of a keepalive.
type empty struct{}
