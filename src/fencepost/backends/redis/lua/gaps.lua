-- Clients that poll, such as redis-py's Lock, find the lock free only in a gap: it is handed on otherwise, and never free.
-- So a release opens a gap now and then, if somebody waits: the lock is free, and none of its waiters gets it, for as
-- long as such a client sleeps between two attempts. The turn of the waiters before the next gap begins when they get
-- the lock back. Goes after hand_over, and wraps it.
local hand_over_at_once = hand_over
hand_over = function(lock, queue, counter, sharers, here)
    local free = (sharers or 0) == 0 and redis.call('EXISTS', lock) == 1 -- else clients that poll have had their chance
    while free and redis.call('EXISTS', queue .. '\31turn') == 0 do
        local head = redis.call('ZRANGE', queue, 0, 0)[1]
        if not head then break end
        local channel, holder = string.match(head, '^[%d/]+:([^:]*):(.*)$')
        if channel and alive(channel) then
            -- Redis that is out of memory keeps no gap: then the lock is handed on.
            if redis.pcall('SET', queue .. '\31gap', 1, 'PX', $gap).err then break end
            redis.call('DEL', lock)
            redis.pcall('PUBLISH', channel, holder) -- it looks, finds the gap, and looks again soon
            return false, {}
        end
        redis.call('ZREM', queue, head)
    end
    return hand_over_at_once(lock, queue, counter, sharers, here)
end
