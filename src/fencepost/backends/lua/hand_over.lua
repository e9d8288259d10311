-- hand_over(lock, queue, counter): give a lock that has become free to its first live waiter and tell that
-- one alone; without one, delete it. Says whether there was one.
local function hand_over(lock, queue, counter)
    local now, token
    while true do
        local head = redis.call('ZPOPMIN', queue)[1]
        if not head then break end
        if not token then
            local minted
            now = clock()
            minted, token = pcall(mint, counter, now)
            -- Redis is out of memory: free the lock all the same. The waiters look again by themselves.
            if not minted then break end
        end
        local ttl, channel, holder = string.match(head, '^(%d+):([^:]*):(.*)$')
        local grant = string.format('%s %s %.0f %s', token, ttl, now, holder)
        -- Nobody receives it: the waiter's process is gone.
        if tell(channel, grant) then
            redis.call('SET', lock, holder .. ':' .. token, 'PX', ttl)
            return true
        end
    end
    redis.call('DEL', lock)
    return false
end
