-- Clients that poll, such as redis-py's Lock, never find a lock free that is always handed over to a waiter. So if
-- there are waiters, a release opens a gap now and then: the lock is free, and no waiter gets it, for as long as such a
-- client sleeps between two attempts. When a waiter gets the lock after the gap, the turn of the waiters begins; until
-- it ends, there is no other gap. This file comes after hand_over, and wraps it.
local hand_over_at_once = hand_over
hand_over = function(lock, queue, counter, sharers, here)
    local free = (sharers or 0) == 0 and redis.call('EXISTS', lock) == 1 -- else clients that poll had their chance
    while free and redis.call('EXISTS', queue .. '\31turn') == 0 do
        local head = redis.call('ZRANGE', queue, 0, 0)[1]
        if not head then break end
        local channel, holder = string.match(head, '^[%d/]+:([^:]*):(.*)$')
        if channel and alive(channel) then
            -- If Redis is out of memory, it cannot keep a gap: then the lock is handed over.
            if redis.pcall('SET', queue .. '\31gap', 1, 'PX', $gap).err then break end
            redis.call('DEL', lock)
            redis.pcall('PUBLISH', channel, holder) -- the waiter looks, finds the gap, and looks again soon
            return false, {}
        end
        redis.call('ZREM', queue, head)
    end
    return hand_over_at_once(lock, queue, counter, sharers, here)
end
