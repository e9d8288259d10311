"""Generated from fencepost/backends/proto/etcd.proto; do not edit.

protoc's own Python output would ask for a runtime at least as new as itself; the bare descriptor does not. The pool is
our own, so that no other client of etcd in the process can be in the way.
"""

from google.protobuf import descriptor_pool, message_factory

_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(
    b'\n#fencepost/backends/proto/etcd.proto\x12\x0efencepost.etcd"\xae\x01\n\x08KeyVal'
    b"ue\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03key\x12'\n\x0fcreate_revision\x18\x02 \x01(\x03R\x0ecreateRevision\x12!\n"
    b'\x0cmod_revision\x18\x03 \x01(\x03R\x0bmodRevision\x12\x18\n\x07version\x18\x04 \x01(\x03R\x07version\x12\x14\n\x05va'
    b'lue\x18\x05 \x01(\x0cR\x05value\x12\x14\n\x05lease\x18\x06 \x01(\x03R\x05lease"\x85\x01\n\x0eResponseHeader\x12\x1d\n\nclu'
    b'ster_id\x18\x01 \x01(\x04R\tclusterId\x12\x1b\n\tmember_id\x18\x02 \x01(\x04R\x08memberId\x12\x1a\n\x08revisio'
    b'n\x18\x03 \x01(\x03R\x08revision\x12\x1b\n\traft_term\x18\x04 \x01(\x04R\x08raftTerm"\xb4\x04\n\x0cRangeRequest\x12'
    b'\x10\n\x03key\x18\x01 \x01(\x0cR\x03key\x12\x1b\n\trange_end\x18\x02 \x01(\x0cR\x08rangeEnd\x12\x14\n\x05limit\x18\x03 \x01(\x03R\x05l'
    b'imit\x12\x1a\n\x08revision\x18\x04 \x01(\x03R\x08revision\x12E\n\nsort_order\x18\x05 \x01(\x0e2&.fencepost'
    b".etcd.RangeRequest.SortOrderR\tsortOrder\x12H\n\x0bsort_target\x18\x06 \x01(\x0e2'.f"
    b'encepost.etcd.RangeRequest.SortTargetR\nsortTarget\x12"\n\x0cserializabl'
    b'e\x18\x07 \x01(\x08R\x0cserializable\x12\x1b\n\tkeys_only\x18\x08 \x01(\x08R\x08keysOnly\x12\x1d\n\ncount_only'
    b'\x18\t \x01(\x08R\tcountOnly\x12.\n\x13min_create_revision\x18\x0c \x01(\x03R\x11minCreateRevisio'
    b'n\x12.\n\x13max_create_revision\x18\r \x01(\x03R\x11maxCreateRevision".\n\tSortOrder\x12\x08'
    b'\n\x04NONE\x10\x00\x12\n\n\x06ASCEND\x10\x01\x12\x0b\n\x07DESCEND\x10\x02"B\n\nSortTarget\x12\x07\n\x03KEY\x10\x00\x12\x0b\n\x07VERS'
    b'ION\x10\x01\x12\n\n\x06CREATE\x10\x02\x12\x07\n\x03MOD\x10\x03\x12\t\n\x05VALUE\x10\x04"\x9d\x01\n\rRangeResponse\x126\n\x06heade'
    b'r\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header\x12*\n\x03kvs\x18\x02 \x03(\x0b2\x18.f'
    b'encepost.etcd.KeyValueR\x03kvs\x12\x12\n\x04more\x18\x03 \x01(\x08R\x04more\x12\x14\n\x05count\x18\x04 \x01(\x03R\x05'
    b'count"J\n\nPutRequest\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03key\x12\x14\n\x05value\x18\x02 \x01(\x0cR\x05value\x12\x14\n\x05l'
    b'ease\x18\x03 \x01(\x03R\x05lease"E\n\x0bPutResponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.etc'
    b'd.ResponseHeaderR\x06header"C\n\x12DeleteRangeRequest\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03key'
    b'\x12\x1b\n\trange_end\x18\x02 \x01(\x0cR\x08rangeEnd"g\n\x13DeleteRangeResponse\x126\n\x06header\x18\x01'
    b' \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header\x12\x18\n\x07deleted\x18\x02 \x01(\x03R\x07d'
    b'eleted"\xf2\x01\n\tRequestOp\x12C\n\rrequest_range\x18\x01 \x01(\x0b2\x1c.fencepost.etcd.Ran'
    b'geRequestH\x00R\x0crequestRange\x12=\n\x0brequest_put\x18\x02 \x01(\x0b2\x1a.fencepost.etcd.'
    b'PutRequestH\x00R\nrequestPut\x12V\n\x14request_delete_range\x18\x03 \x01(\x0b2".fencepo'
    b'st.etcd.DeleteRangeRequestH\x00R\x12requestDeleteRangeB\t\n\x07request"\xfd\x01\n\n'
    b'ResponseOp\x12F\n\x0eresponse_range\x18\x01 \x01(\x0b2\x1d.fencepost.etcd.RangeRespons'
    b'eH\x00R\rresponseRange\x12@\n\x0cresponse_put\x18\x02 \x01(\x0b2\x1b.fencepost.etcd.PutRes'
    b'ponseH\x00R\x0bresponsePut\x12Y\n\x15response_delete_range\x18\x03 \x01(\x0b2#.fencepost.'
    b'etcd.DeleteRangeResponseH\x00R\x13responseDeleteRangeB\n\n\x08response"\xed\x03\n\x07'
    b'Compare\x12=\n\x06result\x18\x01 \x01(\x0e2%.fencepost.etcd.Compare.CompareResultR\x06'
    b'result\x12=\n\x06target\x18\x02 \x01(\x0e2%.fencepost.etcd.Compare.CompareTargetR\x06t'
    b'arget\x12\x10\n\x03key\x18\x03 \x01(\x0cR\x03key\x12\x1a\n\x07version\x18\x04 \x01(\x03H\x00R\x07version\x12)\n\x0fcreate_re'
    b'vision\x18\x05 \x01(\x03H\x00R\x0ecreateRevision\x12#\n\x0cmod_revision\x18\x06 \x01(\x03H\x00R\x0bmodRevis'
    b'ion\x12\x16\n\x05value\x18\x07 \x01(\x0cH\x00R\x05value\x12\x16\n\x05lease\x18\x08 \x01(\x03H\x00R\x05lease\x12\x1b\n\trange_end'
    b'\x18@ \x01(\x0cR\x08rangeEnd"@\n\rCompareResult\x12\t\n\x05EQUAL\x10\x00\x12\x0b\n\x07GREATER\x10\x01\x12\x08\n\x04LES'
    b'S\x10\x02\x12\r\n\tNOT_EQUAL\x10\x03"G\n\rCompareTarget\x12\x0b\n\x07VERSION\x10\x00\x12\n\n\x06CREATE\x10\x01\x12\x07\n\x03'
    b'MOD\x10\x02\x12\t\n\x05VALUE\x10\x03\x12\t\n\x05LEASE\x10\x04B\x0e\n\x0ctarget_union"\xa9\x01\n\nTxnRequest\x121\n\x07co'
    b'mpare\x18\x01 \x03(\x0b2\x17.fencepost.etcd.CompareR\x07compare\x123\n\x07success\x18\x02 \x03(\x0b2\x19'
    b'.fencepost.etcd.RequestOpR\x07success\x123\n\x07failure\x18\x03 \x03(\x0b2\x19.fencepost.'
    b'etcd.RequestOpR\x07failure"\x9d\x01\n\x0bTxnResponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.fencep'
    b'ost.etcd.ResponseHeaderR\x06header\x12\x1c\n\tsucceeded\x18\x02 \x01(\x08R\tsucceeded\x128\n'
    b'\tresponses\x18\x03 \x03(\x0b2\x1a.fencepost.etcd.ResponseOpR\tresponses"5\n\x11Lease'
    b'GrantRequest\x12\x10\n\x03TTL\x18\x01 \x01(\x03R\x03TTL\x12\x0e\n\x02ID\x18\x02 \x01(\x03R\x02ID"\x84\x01\n\x12LeaseGrantRes'
    b'ponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header\x12\x0e\n'
    b'\x02ID\x18\x02 \x01(\x03R\x02ID\x12\x10\n\x03TTL\x18\x03 \x01(\x03R\x03TTL\x12\x14\n\x05error\x18\x04 \x01(\tR\x05error"$\n\x12LeaseRe'
    b'vokeRequest\x12\x0e\n\x02ID\x18\x01 \x01(\x03R\x02ID"M\n\x13LeaseRevokeResponse\x126\n\x06header\x18\x01 \x01'
    b'(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header"\'\n\x15LeaseKeepAliveRequ'
    b'est\x12\x0e\n\x02ID\x18\x01 \x01(\x03R\x02ID"r\n\x16LeaseKeepAliveResponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.'
    b'fencepost.etcd.ResponseHeaderR\x06header\x12\x0e\n\x02ID\x18\x02 \x01(\x03R\x02ID\x12\x10\n\x03TTL\x18\x03 \x01'
    b'(\x03R\x03TTL"<\n\x16LeaseTimeToLiveRequest\x12\x0e\n\x02ID\x18\x01 \x01(\x03R\x02ID\x12\x12\n\x04keys\x18\x02 \x01(\x08R'
    b'\x04keys"\xa7\x01\n\x17LeaseTimeToLiveResponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.et'
    b'cd.ResponseHeaderR\x06header\x12\x0e\n\x02ID\x18\x02 \x01(\x03R\x02ID\x12\x10\n\x03TTL\x18\x03 \x01(\x03R\x03TTL\x12\x1e\n\ng'
    b'rantedTTL\x18\x04 \x01(\x03R\ngrantedTTL\x12\x12\n\x04keys\x18\x05 \x03(\x0cR\x04keys"\x88\x01\n\x05Event\x123\n\x04typ'
    b'e\x18\x01 \x01(\x0e2\x1f.fencepost.etcd.Event.EventTypeR\x04type\x12(\n\x02kv\x18\x02 \x01(\x0b2\x18.fen'
    b'cepost.etcd.KeyValueR\x02kv" \n\tEventType\x12\x07\n\x03PUT\x10\x00\x12\n\n\x06DELETE\x10\x01"\xf5\x01\n\x12W'
    b'atchCreateRequest\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03key\x12\x1b\n\trange_end\x18\x02 \x01(\x0cR\x08rangeEnd'
    b'\x12%\n\x0estart_revision\x18\x03 \x01(\x03R\rstartRevision\x12G\n\x07filters\x18\x05 \x03(\x0e2-.fence'
    b'post.etcd.WatchCreateRequest.FilterTypeR\x07filters\x12\x19\n\x08watch_id\x18\x07 \x01'
    b'(\x03R\x07watchId"%\n\nFilterType\x12\t\n\x05NOPUT\x10\x00\x12\x0c\n\x08NODELETE\x10\x01"/\n\x12WatchCance'
    b'lRequest\x12\x19\n\x08watch_id\x18\x01 \x01(\x03R\x07watchId"\xb9\x01\n\x0cWatchRequest\x12K\n\x0ecreate_r'
    b'equest\x18\x01 \x01(\x0b2".fencepost.etcd.WatchCreateRequestH\x00R\rcreateReques'
    b't\x12K\n\x0ecancel_request\x18\x02 \x01(\x0b2".fencepost.etcd.WatchCancelRequestH\x00R'
    b'\rcancelRequestB\x0f\n\rrequest_union"\x97\x02\n\rWatchResponse\x126\n\x06header\x18\x01 \x01('
    b'\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header\x12\x19\n\x08watch_id\x18\x02 \x01(\x03R\x07wat'
    b'chId\x12\x18\n\x07created\x18\x03 \x01(\x08R\x07created\x12\x1a\n\x08canceled\x18\x04 \x01(\x08R\x08canceled\x12)\n\x10co'
    b'mpact_revision\x18\x05 \x01(\x03R\x0fcompactRevision\x12#\n\rcancel_reason\x18\x06 \x01(\tR\x0cca'
    b'ncelReason\x12-\n\x06events\x18\x0b \x03(\x0b2\x15.fencepost.etcd.EventR\x06events"E\n\x13Aut'
    b'henticateRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x1a\n\x08password\x18\x02 \x01(\tR\x08password'
    b'"d\n\x14AuthenticateResponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.Respon'
    b'seHeaderR\x06header\x12\x14\n\x05token\x18\x02 \x01(\tR\x05token"\x86\x01\n\x06Member\x12\x0e\n\x02ID\x18\x01 \x01(\x04R\x02I'
    b'D\x12\x12\n\x04name\x18\x02 \x01(\tR\x04name\x12\x1a\n\x08peerURLs\x18\x03 \x03(\tR\x08peerURLs\x12\x1e\n\nclientURLs\x18'
    b'\x04 \x03(\tR\nclientURLs\x12\x1c\n\tisLearner\x18\x05 \x01(\x08R\tisLearner"7\n\x11MemberListReq'
    b'uest\x12"\n\x0clinearizable\x18\x01 \x01(\x08R\x0clinearizable"~\n\x12MemberListResponse\x126'
    b'\n\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header\x120\n\x07member'
    b's\x18\x02 \x03(\x0b2\x16.fencepost.etcd.MemberR\x07members"\x0f\n\rStatusRequest"\xd0\x02\n\x0eSt'
    b'atusResponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06he'
    b'ader\x12\x18\n\x07version\x18\x02 \x01(\tR\x07version\x12\x16\n\x06dbSize\x18\x03 \x01(\x03R\x06dbSize\x12\x16\n\x06leader'
    b'\x18\x04 \x01(\x04R\x06leader\x12\x1c\n\traftIndex\x18\x05 \x01(\x04R\traftIndex\x12\x1a\n\x08raftTerm\x18\x06 \x01(\x04R\x08'
    b'raftTerm\x12*\n\x10raftAppliedIndex\x18\x07 \x01(\x04R\x10raftAppliedIndex\x12\x16\n\x06errors\x18\x08'
    b' \x03(\tR\x06errors\x12 \n\x0bdbSizeInUse\x18\t \x01(\x03R\x0bdbSizeInUse\x12\x1c\n\tisLearner\x18\n \x01('
    b'\x08R\tisLearnerb\x06proto3'
)
globals().update(
    {
        name: message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"fencepost.etcd.{name}"))
        for name in 'KeyValue ResponseHeader RangeRequest RangeResponse PutRequest PutResponse DeleteRangeRequest DeleteRangeResponse RequestOp ResponseOp Compare TxnRequest TxnResponse LeaseGrantRequest LeaseGrantResponse LeaseRevokeRequest LeaseRevokeResponse LeaseKeepAliveRequest LeaseKeepAliveResponse LeaseTimeToLiveRequest LeaseTimeToLiveResponse Event WatchCreateRequest WatchCancelRequest WatchRequest WatchResponse AuthenticateRequest AuthenticateResponse Member MemberListRequest MemberListResponse StatusRequest StatusResponse'.split()
    }
)
